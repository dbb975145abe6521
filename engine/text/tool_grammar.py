"""The grammar of an answer that may, or must, call tools. Pure.

    may     text, or text and then calls      the model decides by writing the marker
    must    calls, from the first id on

Behind the marker a call is written as the family writes it (`ToolFormat`): its name is one of the
tools, its arguments follow the tool's schema. A marker that is a token of its own must be that
token; text cannot spell it.
"""

import json
import re
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine.text.grammar import json_rule
from continuo.engine.text.tool_format import ToolFormat
from continuo.engine.wire.messages import Grammar

TokenId = Callable[[str], int | None]
"""The id of a token by its spelling, if it is one."""
ANY_ARGUMENTS = '{"type": "object"}'


class Callee(msgspec.Struct, frozen=True):
    """A tool that may be called. `schema` of its arguments, an object: JSON, one that can be
    enforced."""

    name: str
    schema: str = ANY_ARGUMENTS


class Asked(msgspec.Struct, frozen=True):
    """What an answer may be. `must`: call, and say nothing else; `several`: more than one call;
    `answer`: what it says if it does not call (None: any text)."""

    must: bool = False
    several: bool = True
    answer: Grammar | None = None


def calls(format: ToolFormat, tools: Sequence[Callee], token: TokenId, asked: Asked) -> Grammar:
    """Raises SchemaError if a schema is not even JSON; it is compiled later."""
    marker = _mark(format.marker, token)
    one, several = _forms(format, tools, token)
    behind = several if asked.several else one
    if format.array:
        behind = f'" "? "[" {behind} "]"'
    rules = ["%llguidance {}", f"behind: {behind}"]
    whole = "behind" if format.bare else f"{marker} behind"
    if asked.must:
        rules.insert(1, f"start: {whole}")
    elif asked.answer is not None:
        said = json_rule(asked.answer.source or ANY_ARGUMENTS)
        rules.insert(1, f"start: {whole} | {said}")
    else:
        rules += _text_first(format, marker)
        rules.insert(1, "start: text? | begun" + (" | behind" if format.bare else ""))
    return Grammar("lark", "\n".join(rules))


def _forms(format: ToolFormat, tools: Sequence[Callee], token: TokenId) -> tuple[str, str]:
    """What stands behind the marker: of one call, and of one or more."""
    marker, quoted = _mark(format.marker, token), json.dumps
    if format.args_marker:
        between = _mark(format.args_marker, token)
        heads = [
            f"{quoted(tool.name)} {between} {json_rule(tool.schema, type='object')}"
            for tool in tools
        ]
        one = f"({' | '.join(heads)})"
        return one, f"{one} ({marker} {one})*"
    key = "parameters" if format.bare else "arguments"
    heads = [
        quoted(f'{json.dumps(tool.name, ensure_ascii=False)}, "{key}": ')
        + f" {json_rule(tool.schema, type='object')}"
        for tool in tools
    ]
    opening, closing = quoted('{"name": '), quoted("}")
    one = f"{opening} ({' | '.join(heads)}) {closing}"
    if format.close:
        one = f'"\\n"? {one} "\\n"? {_mark(format.close, token)}'
        return one, f'{one} ("\\n"? {marker} {one})*'
    separator = quoted(", " if format.array else "; ")
    return one, f"{one} ({separator} {one})*"


def _text_first(format: ToolFormat, marker: str) -> list[str]:
    """Rules of text without a marker, and of what begins with one, perhaps after text. Text of a
    family that calls without a marker does not begin as such a call does."""
    spelt = re.escape(format.marker).replace("/", r"\/")
    some = r"/\s*[^\s{](?s:.*)/" if format.bare else "/(?s:.+)/"
    text = f"text: TEXT\nTEXT: {some} & ~/(?s:.*){spelt}(?s:.*)/"
    if marker.startswith("<["):
        return [text, f"begun: text? {marker} behind"]
    return [text, f"until[lazy]: /(?s:.*){spelt}/", "begun: until behind"]


def _mark(spelling: str, token: TokenId) -> str:
    id = token(spelling)
    return json.dumps(spelling) if id is None else f"<[{id}]>"

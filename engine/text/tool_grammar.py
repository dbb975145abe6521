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

from continuo.engine.text.grammar import build_json_rule
from continuo.engine.text.tool_format import ToolFormat
from continuo.engine.wire.messages import Grammar

TokenLookup = Callable[[str], int | None]
"""The id of a token by its spelling, if it is one."""
ANY_ARGUMENTS = '{"type": "object"}'


class CallableTool(msgspec.Struct, frozen=True):
    """A tool that may be called. `schema` of its arguments, an object: JSON, one that can be
    enforced."""

    name: str
    parameters_schema: str = ANY_ARGUMENTS


class ToolCallRules(msgspec.Struct, frozen=True):
    """What an answer may be. `must`: call, and say nothing else; `several`: more than one call;
    `answer`: what it says if it does not call (None: any text)."""

    is_required: bool = False
    allows_parallel: bool = True
    text_grammar: Grammar | None = None


def build_tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[CallableTool],
    lookup: TokenLookup,
    rules: ToolCallRules,
) -> Grammar:
    """Raises SchemaError if a schema is not even JSON; it is compiled later."""
    marker = _marker_term(tool_format.marker, lookup)
    one, several = _build_call_rules(tool_format, tools, lookup)
    behind = several if rules.allows_parallel else one
    if tool_format.is_array:
        behind = f'" "? "[" {behind} "]"'
    productions = ["%llguidance {}", f"behind: {behind}"]
    whole = "behind" if tool_format.allows_bare else f"{marker} behind"
    if rules.is_required:
        productions.insert(1, f"start: {whole}")
    elif rules.text_grammar is not None:
        said = build_json_rule(rules.text_grammar.source or ANY_ARGUMENTS)
        productions.insert(1, f"start: {whole} | {said}")
    else:
        productions += _build_text_rules(tool_format, marker)
        productions.insert(
            1, "start: text? | begun" + (" | behind" if tool_format.allows_bare else "")
        )
    return Grammar("lark", "\n".join(productions))


def _build_call_rules(
    format: ToolFormat, tools: Sequence[CallableTool], token: TokenLookup
) -> tuple[str, str]:
    """What stands behind the marker: of one call, and of one or more."""
    marker, quoted = _marker_term(format.marker, token), json.dumps
    if format.args_marker:
        between = _marker_term(format.args_marker, token)
        heads = [
            f"{quoted(tool.name)} {between} "
            f"{build_json_rule(tool.parameters_schema, type='object')}"
            for tool in tools
        ]
        one = f"({' | '.join(heads)})"
        return one, f"{one} ({marker} {one})*"
    key = "parameters" if format.allows_bare else "arguments"
    heads = [
        quoted(f'{json.dumps(tool.name, ensure_ascii=False)}, "{key}": ')
        + f" {build_json_rule(tool.parameters_schema, type='object')}"
        for tool in tools
    ]
    opening, closing = quoted('{"name": '), quoted("}")
    one = f"{opening} ({' | '.join(heads)}) {closing}"
    if format.close_marker:
        one = f'"\\n"? {one} "\\n"? {_marker_term(format.close_marker, token)}'
        return one, f'{one} ("\\n"? {marker} {one})*'
    separator = quoted(", " if format.is_array else "; ")
    return one, f"{one} ({separator} {one})*"


def _build_text_rules(format: ToolFormat, marker: str) -> list[str]:
    """Rules of text without a marker, and of what begins with one, perhaps after text. Text of a
    family that calls without a marker does not begin as such a call does."""
    spelt = re.escape(format.marker).replace("/", r"\/")
    some = r"/\s*[^\s{](?s:.*)/" if format.allows_bare else "/(?s:.+)/"
    text = f"text: TEXT\nTEXT: {some} & ~/(?s:.*){spelt}(?s:.*)/"
    if marker.startswith("<["):
        return [text, f"begun: text? {marker} behind"]
    return [text, f"until[lazy]: /(?s:.*){spelt}/", "begun: until behind"]


def _marker_term(spelling: str, token: TokenLookup) -> str:
    id = token(spelling)
    return json.dumps(spelling) if id is None else f"<[{id}]>"

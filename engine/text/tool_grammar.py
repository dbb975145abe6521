"""Build the grammar of a response that may, or must, call tools. Pure.

    may     text, or text and then calls      the model decides by writing the marker
    must    calls, from the first id on

After the marker, a call follows the syntax of the model family (`ToolFormat`): its name is one of
the tools, and its arguments match the tool's schema. If the vocabulary has a token for the marker,
only that token opens a call, and text cannot contain its spelling.
"""

import json
import re
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine.sampling import Grammar
from continuo.engine.text.grammar import build_json_rule
from continuo.engine.text.tool_format import ToolFormat

TokenLookup = Callable[[str], int | None]
"""Looks up the id of a token by its spelling. Returns None if there is no such token."""
ANY_ARGUMENTS = '{"type": "object"}'


class CallableTool(msgspec.Struct, frozen=True):
    """A tool that may be called."""

    name: str
    parameters_schema: str = ANY_ARGUMENTS
    """JSON schema of the arguments object. The caller has checked that it can be enforced
    (`find_schema_problem`)."""


class ToolCallRules(msgspec.Struct, frozen=True):
    """Constraints on the calls and the text of a response."""

    is_required: bool = False
    """Whether the response must call at least one tool and contain no text."""
    allows_parallel: bool = True
    """Whether the response may contain more than one call."""
    text_grammar: Grammar | None = None
    """Grammar (kind `json` or `json_schema`) of a response without calls; None: any text."""


def build_tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[CallableTool],
    lookup: TokenLookup,
    rules: ToolCallRules,
) -> Grammar:
    """Build the grammar as uncompiled Lark source; `GrammarCompiler` compiles it.

    Raises SchemaError if the schema of a tool or of `text_grammar` is not a JSON object.
    """
    marker = _marker_term(tool_format.marker, lookup)
    one, several = _build_call_rules(tool_format, tools, lookup)
    calls = several if rules.allows_parallel else one
    if tool_format.is_array:
        calls = f'" "? "[" {calls} "]"'
    productions = ["%llguidance {}", f"behind: {calls}"]
    whole = "behind" if tool_format.allows_bare else f"{marker} behind"
    if rules.is_required:
        productions.insert(1, f"start: {whole}")
    elif rules.text_grammar is not None:
        text = build_json_rule(rules.text_grammar.source or ANY_ARGUMENTS)
        productions.insert(1, f"start: {whole} | {text}")
    else:
        productions += _build_text_rules(tool_format, marker)
        productions.insert(
            1, "start: text? | begun" + (" | behind" if tool_format.allows_bare else "")
        )
    return Grammar("lark", "\n".join(productions))


def _build_call_rules(
    tool_format: ToolFormat, tools: Sequence[CallableTool], lookup: TokenLookup
) -> tuple[str, str]:
    """Build the right-hand sides of two grammar rules for what follows a tool-call marker: one
    call, and one or more calls."""
    marker, quoted = _marker_term(tool_format.marker, lookup), json.dumps
    if tool_format.args_marker:
        between = _marker_term(tool_format.args_marker, lookup)
        heads = [
            f"{quoted(tool.name)} {between} "
            f"{build_json_rule(tool.parameters_schema, type='object')}"
            for tool in tools
        ]
        one = f"({' | '.join(heads)})"
        return one, f"{one} ({marker} {one})*"
    key = "parameters" if tool_format.allows_bare else "arguments"
    heads = [
        quoted(f'{json.dumps(tool.name, ensure_ascii=False)}, "{key}": ')
        + f" {build_json_rule(tool.parameters_schema, type='object')}"
        for tool in tools
    ]
    opening, closing = quoted('{"name": '), quoted("}")
    one = f"{opening} ({' | '.join(heads)}) {closing}"
    if tool_format.close_marker:
        one = f'"\\n"? {one} "\\n"? {_marker_term(tool_format.close_marker, lookup)}'
        return one, f'{one} ("\\n"? {marker} {one})*'
    separator = quoted(", " if tool_format.is_array else "; ")
    return one, f"{one} ({separator} {one})*"


def _build_text_rules(tool_format: ToolFormat, marker: str) -> list[str]:
    """Build the rules of text without a marker (`text`), and of optional text followed by a marker
    and calls (`begun`).

    If the format allows calls without a marker, text may not begin with `{`, as such a call does.
    """
    pattern = re.escape(tool_format.marker).replace("/", r"\/")
    any_text = r"/\s*[^\s{](?s:.*)/" if tool_format.allows_bare else "/(?s:.+)/"
    text = f"text: TEXT\nTEXT: {any_text} & ~/(?s:.*){pattern}(?s:.*)/"
    if marker.startswith("<["):
        return [text, f"begun: text? {marker} behind"]
    return [text, f"until[lazy]: /(?s:.*){pattern}/", "begun: until behind"]


def _marker_term(spelling: str, lookup: TokenLookup) -> str:
    id = lookup(spelling)
    return json.dumps(spelling) if id is None else f"<[{id}]>"

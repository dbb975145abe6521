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
from typing import cast

import msgspec

from continuo.engine.sampling import Grammar
from continuo.engine.text.grammar import SchemaError, build_json_rule
from continuo.engine.text.tool_arguments import find_types
from continuo.engine.text.tool_format import (
    Arguments,
    JsonArguments,
    LiteralArguments,
    NamedCalls,
    TaggedArguments,
    ToolFormat,
)

TokenSplit = Callable[[str], Sequence[tuple[str, int | None]]]
"""Splits a text into the tokens that it spells, with their ids, and other text, with None."""
ANY_ARGUMENTS = '{"type": "object"}'
_STRING_RULES = ("pattern", "format", "minLength", "maxLength")
_OBJECT_RULES = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "title", "description"),
        *("$defs", "definitions", "$schema", "strict", "examples", "default"),
    )
)


class CallableTool(msgspec.Struct, frozen=True):
    """A tool that may be called."""

    name: str
    parameters_schema: str = ANY_ARGUMENTS
    """JSON schema of the arguments object. The caller has checked that it can be enforced."""


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
    split: TokenSplit,
    rules: ToolCallRules,
) -> Grammar:
    """Build the grammar as uncompiled Lark source; `GrammarCompiler` compiles it.

    Raises SchemaError if the schema of a tool or of `text_grammar` is not a JSON object, or cannot
    be enforced in this format.
    """
    terms = _Terms(split)
    if tool_format.is_harmony:
        return _build_harmony_grammar(tools, terms, rules)
    marker = terms.literal(tool_format.marker)
    if tool_format.named is None:
        one, several = _build_object_rules(tool_format, tools, terms)
    else:
        one, several = _build_named_rules(tool_format, tool_format.named, tools, terms)
    calls = several if rules.allows_parallel else one
    productions = ["%llguidance {}", f"behind: {calls}", *terms.rules]
    whole = "behind" if tool_format.allows_bare else f"{marker} behind"
    if rules.is_required:
        productions.insert(1, f"start: {whole}")
    elif rules.text_grammar is not None:
        text = build_json_rule(rules.text_grammar.source or ANY_ARGUMENTS)
        productions.insert(1, f"start: {whole} | {text}")
    else:
        productions += _build_text_rules(tool_format, marker, [tool.name for tool in tools])
        begun = " | begun" if marker else ""
        bare = " | behind" if tool_format.allows_bare else ""
        productions.insert(1, f"start: text?{begun}{bare}")
    return Grammar("lark", "\n".join(productions))


def find_call_problem(tool_format: ToolFormat, tool: CallableTool, split: TokenSplit) -> str | None:
    """Explain why the calls of a tool cannot be enforced in this format, in one line. Returns None
    if they can."""
    try:
        build_tool_grammar(tool_format, [tool], split, ToolCallRules(is_required=True))
    except SchemaError as error:
        return str(error)
    return None


def terms_of(text: str, split: TokenSplit) -> str:
    """Build the term of a text: tokens by their ids, the rest by its characters."""
    return " ".join(
        json.dumps(piece, ensure_ascii=False) if id is None else f"<[{id}]>"
        for piece, id in split(text)
    )


class _Terms:
    """Terms of one grammar, and the rules that they refer to."""

    def __init__(self, split: TokenSplit) -> None:
        self._split = split
        self.rules: list[str] = []

    def literal(self, text: str) -> str:
        return terms_of(text, self._split)

    def name(self, name: str, call_id: str, end: str) -> str:
        """Build the term of the name of a call, its id, if any, and the text `end` after them."""
        if call_id or any(id is not None for _, id in self._split(end)):
            return f"{json.dumps(name, ensure_ascii=False)} {call_id} {self.literal(end)}"
        # One lexeme, which is longer than the text that may begin alike.
        return json.dumps(name + end, ensure_ascii=False)

    def rule(self, body: str) -> str:
        """Add a rule and return its name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def until(self, end: str, block: tuple[str, str] = ("", "")) -> str:
        """Build the term of any text, and then the text `end`. A text may also be a block between
        two texts, and then has no end in the block."""
        opening, closing = block
        if opening:
            inner = f"{self.literal(opening)} {self.until(closing + end)}"
            return f"({self._until(end, opening)} | {inner})"
        return self._until(end)

    def _until(self, end: str, opening: str = "") -> str:
        """Build the term of any text that does not begin with `opening`, and then `end`."""
        [(first, id), *rest] = self._split(end)
        pattern = pattern_of(first)
        start = f" & ~/{pattern_of(opening)}(?s:.*)/" if opening else ""
        name = f"r{len(self.rules)}"
        if id is None:
            self.rules.append(f"{name}[lazy]: /(?s:.*){pattern}/{start}")
            return " ".join((name, *(self.literal(piece) for piece, _ in rest)))
        terminal = f"T{len(self.rules)}"
        self.rules.append(
            f"{name}: {terminal}?\n{terminal}: /(?s:.+)/ & ~/(?s:.*){pattern}(?s:.*)/{start}"
        )
        return f"{name} {self.literal(end)}"


def _build_harmony_grammar(
    tools: Sequence[CallableTool], terms: _Terms, rules: ToolCallRules
) -> Grammar:
    """Build the grammar of the last message of a response: a call or text, with its header."""
    opening, message = terms.literal("<|channel|>commentary to="), terms.literal("<|message|>")
    calls = " | ".join(
        f"{json.dumps('functions.' + tool.name + ' ')} {terms.literal('<|constrain|>json')} "
        f"{message} {build_json_rule(tool.parameters_schema, type='object')}"
        for tool in tools
    )
    productions = ["%llguidance {}", f"start: {opening} ({calls})"]
    if not rules.is_required:
        text = "TEXT?"
        if rules.text_grammar is not None:
            text = build_json_rule(rules.text_grammar.source or ANY_ARGUMENTS)
        else:
            productions.append("TEXT: /(?s:.+)/")
        productions[1] += f" | {terms.literal('<|channel|>final')} {message} {text}"
    return Grammar("lark", "\n".join(productions))


def _build_object_rules(
    tool_format: ToolFormat, tools: Sequence[CallableTool], terms: _Terms
) -> tuple[str, str]:
    """Build the right-hand sides of two grammar rules for what follows a tool-call marker: one
    call, and one or more calls. Each call is a JSON object."""
    quoted = json.dumps
    heads = [
        quoted(f'{json.dumps(tool.name, ensure_ascii=False)}, "{tool_format.arguments_key}": ')
        + f" {build_json_rule(tool.parameters_schema, type='object')}"
        for tool in tools
    ]
    opening, closing = quoted(f'{{"{tool_format.name_key}": '), quoted("}")
    one = f"{opening} ({' | '.join(heads)}) {closing}"
    close = terms.literal(tool_format.close_marker)
    if tool_format.is_array:
        several = f"{one} ({quoted(', ')} {one})*"
        return f'" "? "[" {one} "]" {close}', f'" "? "[" {several} "]" {close}'
    if close:
        one = f'"\\n"? {one} "\\n"? {close}'
        return one, f'{one} ("\\n"? {terms.literal(tool_format.marker)} {one})*'
    return one, f"{one} ({quoted('; ')} {one})*"


def _build_named_rules(
    tool_format: ToolFormat, named: NamedCalls, tools: Sequence[CallableTool], terms: _Terms
) -> tuple[str, str]:
    """Build the same rules as `_build_object_rules` for calls that begin with their name."""
    call_id = f"({terms.literal(named.id_mark)} /[a-zA-Z0-9]{{1,9}}/)?" if named.id_mark else ""
    heads = [
        f"{terms.name(tool.name, call_id, named.name_end)} "
        f"{_build_arguments(named.arguments, tool, terms)}"
        for tool in tools
    ]
    one = f"({' | '.join(heads)}) {terms.literal(named.end)}"
    begin = terms.literal(named.begin)
    if named.next_begin:
        close = terms.literal(tool_format.close_marker)
        several = f"{begin} {one} ({terms.literal(named.next_begin)} {one})* {close}"
        return f"{begin} {one} {close}", several
    marker, space = terms.literal(tool_format.marker), json.dumps(named.separator)
    separator = f"{space}?" if named.separator else ""
    return f"{begin} {one}", f"{begin} {one} ({separator} {marker} {begin} {one})*"


def _build_arguments(syntax: Arguments, tool: CallableTool, terms: _Terms) -> str:
    if isinstance(syntax, JsonArguments):
        return build_json_rule(tool.parameters_schema, type="object")
    build_json_rule(tool.parameters_schema)
    value: object = json.loads(tool.parameters_schema)
    schema = cast(dict[str, object], value) if isinstance(value, dict) else {}
    separator = syntax.separator if isinstance(syntax, LiteralArguments) else ""
    close = syntax.close if isinstance(syntax, LiteralArguments) else ""
    properties = schema.get("properties")
    if not properties and schema.get("additionalProperties") is False:
        return terms.literal(close)
    if not isinstance(properties, dict) or not properties:
        pair = _build_any_pair(syntax, terms)
        rest = f"({terms.literal(separator)} {pair})*"
        return f"({pair} {rest})? {terms.literal(close)}"
    unknown = sorted(schema.keys() - _OBJECT_RULES)
    if unknown:
        raise SchemaError(f"{unknown[0]!r} cannot be enforced in this model's syntax of calls")
    listed = schema.get("required")
    required = cast(list[object], listed) if isinstance(listed, list) else []
    pairs = [
        (
            _build_pair(syntax, name, _with_definitions(inner, schema), terms),
            name in required,
        )
        for name, inner in cast(dict[str, object], properties).items()
    ]
    return f"{_join_pairs(pairs, terms.literal(separator), terms)} {terms.literal(close)}"


def _join_pairs(pairs: Sequence[tuple[str, bool]], separator: str, terms: _Terms) -> str:
    """Build the term of arguments in their order, of which some (False) may be left out."""
    rest = {False: '""', True: '""'}  # by whether an argument precedes
    for pair, is_required in reversed(pairs):
        after = rest[True]
        rest = {
            is_begun: terms.rule(
                f"{separator if is_begun else ''} {pair} {after}"
                + ("" if is_required else f" | {rest[is_begun]}")
            )
            for is_begun in (False, True)
        }
    return rest[False]


def _build_pair(
    syntax: TaggedArguments | LiteralArguments, name: str, schema: object, terms: _Terms
) -> str:
    types = find_types(schema)
    if isinstance(syntax, LiteralArguments):
        key = json.dumps(name + syntax.assign, ensure_ascii=False)
        if types == frozenset(["string"]) and len(syntax.quote) > 1:
            opening = terms.literal(syntax.quote)
            return f"{key} {opening} {_build_string(schema, syntax.quote, terms)}"
        return f"{key} {build_json_rule(json.dumps(schema))}"
    head = f"{terms.literal(syntax.key_open)} {json.dumps(name, ensure_ascii=False)}"
    if types is not None and "string" not in types:
        value = f"{build_json_rule(json.dumps(schema))} {terms.literal(syntax.value_close)}"
        return f"{head} {terms.literal(syntax.key_end_other)} {value}"
    block = (syntax.block_open, syntax.block_close)
    value = _build_string(schema, syntax.value_close, terms, block)
    return f"{head} {terms.literal(syntax.key_end)} {value}"


def _build_string(
    schema: object, end: str, terms: _Terms, block: tuple[str, str] = ("", "")
) -> str:
    """Build the term of a string that is written as it is, and the text after it. Raises
    SchemaError."""
    fields = cast(dict[str, object], schema) if isinstance(schema, dict) else {}
    if problem := next((rule for rule in _STRING_RULES if rule in fields), None):
        raise SchemaError(
            f"{problem!r} of a string cannot be enforced in this model's syntax of calls"
        )
    listed = [fields["const"]] if "const" in fields else fields.get("enum")
    if isinstance(listed, list):
        words = [
            each if isinstance(each, str) else json.dumps(each)
            for each in cast(list[object], listed)
        ]
        choices = " | ".join(json.dumps(word, ensure_ascii=False) for word in words)
        return f"({choices}) {terms.literal(end)}"
    return terms.until(end, block)


def _build_any_pair(syntax: TaggedArguments | LiteralArguments, terms: _Terms) -> str:
    """Build the term of an argument of any name and value."""
    name = r"/[a-zA-Z_][a-zA-Z0-9_-]{0,63}/"
    if isinstance(syntax, LiteralArguments):
        anything = "%json " + json.dumps({"x-guidance": {"whitespace_flexible": False}})
        if len(syntax.quote) > 1:
            anything = f"({anything} | {terms.literal(syntax.quote)} {terms.until(syntax.quote)})"
        return f"{name} {terms.literal(syntax.assign)} {anything}"
    text = terms.until(syntax.value_close, (syntax.block_open, syntax.block_close))
    value = f"{terms.literal(syntax.key_end)} {text}"
    return f"{terms.literal(syntax.key_open)} {name} {value}"


def pattern_of(text: str) -> str:
    """Build the pattern of a text within a Lark regex."""
    return re.escape(text).replace("\\\n", r"\n").replace("/", r"\/")


def _with_definitions(schema: object, outer: dict[str, object]) -> object:
    """Add the definitions of the outer schema, to which an inner one may refer."""
    if not isinstance(schema, dict):
        return schema
    shared = {key: outer[key] for key in ("$defs", "definitions") if key in outer}
    return {**shared, **cast(dict[str, object], schema)}


def _build_text_rules(tool_format: ToolFormat, marker: str, names: Sequence[str]) -> list[str]:
    """Build the rules of text without a marker (`text`), and of optional text followed by a marker
    and calls (`begun`), if there is a marker.

    If the format allows calls without a marker, text may not begin as such a call does: with a
    bracket, or with a line that is one of the `names` of tools.
    """
    named = tool_format.named
    pattern = pattern_of(tool_format.marker)
    any_text = "/(?s:.+)/"
    if tool_format.allows_bare and (named is None or named.begin):
        opening = "{" if named is None else pattern_of(named.begin[0])
        any_text = rf"/\s*[^\s{opening}](?s:.*)/"
    elif named is not None and not marker:
        listed = "|".join(pattern_of(name) for name in names)
        any_text += rf" & ~/\s*({listed}){pattern_of(named.name_end)}(?s:.*)/"
    if not marker:
        return [f"text: TEXT\nTEXT: {any_text}"]
    text = f"text: TEXT\nTEXT: {any_text} & ~/(?s:.*){pattern}(?s:.*)/"
    if marker.startswith("<["):
        return [text, f"begun: text? {marker} behind"]
    return [text, f"until[lazy]: /(?s:.*){pattern}/", "begun: until behind"]

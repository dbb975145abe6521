"""Derive the syntax of tool calls from a chat template, by rendering calls whose names and
arguments can be found again in the output.

What comes out is checked: the calls that the template renders must be parsed back to what they
were. A format that fails is not used.
"""

import json
import re
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine.text.chat_template.message import ChatMessage, ToolCall
from continuo.engine.text.output_channels import ReasoningFormat
from continuo.engine.text.tool_arguments import JsonScanner
from continuo.engine.text.tool_format import (
    HARMONY,
    LLAMA3,
    PYTHONIC,
    PYTHONIC_INSTRUCTION,
    PYTHONIC_MARKERS,
    UNRENDERED,
    Arguments,
    JsonArguments,
    LiteralArguments,
    NamedCalls,
    TaggedArguments,
    ToolFormat,
)
from continuo.engine.text.tool_parser import (
    ParsedArguments,
    ParsedCallStarted,
    ParsedText,
    ToolParser,
)

RenderMessages = Callable[[Sequence[ChatMessage]], str | None]
"""Renders a conversation with the template. Returns None if the template refuses it."""

_QUESTION = ChatMessage(role="user", content="zq9question9qz")
_PLAIN = ChatMessage(role="assistant", content="zq9plain9qz")
_FIRST = ToolCall(
    name="zqlook", arguments='{"zqa": "zqpear", "zqb": 7371, "zqc": "zqplum"}', id="zqcall001"
)
_SECOND = ToolCall(name="zqseek", arguments='{"zqa": "zqlime"}', id="zqcall002")
_MARKUP = ToolCall(
    name="zqlook", arguments=json.dumps({"zqa": "zqpear <b>\n& zqplum"}), id="zqcall001"
)
_TYPES = {"zqa": frozenset(["string"]), "zqb": frozenset(["integer"]), "zqc": frozenset(["string"])}
_OBJECT_HEAD = re.compile(r'\{[^{}]*?"(?P<key>(?:tool_)?name)":\s*"zqlook"')
_ARGUMENTS_KEY = re.compile(r'"(arguments|parameters)":\s*"?\{\\?"zqa')
_MARKER = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|[^\s\[({]+")
_MISTRAL_ARGS, _MISTRAL_CALL_ID = "[ARGS]", "[CALL_ID]"
"""Mistral's models write an id even where their templates leave it out."""
_TAG_END = re.compile(r'[>\]})"\s]')


def find_instructed_format(tool_prompt: str, is_token: Callable[[str], bool]) -> ToolFormat | None:
    """Find the syntax that the instructions ask for, where the template renders calls otherwise.
    `tool_prompt`: what the template shows the model about a tool. Returns None if they ask for none
    that is known."""
    if PYTHONIC_INSTRUCTION not in tool_prompt:
        return None
    marker = next((token for token in PYTHONIC_MARKERS if is_token(token)), PYTHONIC.marker)
    return msgspec.structs.replace(PYTHONIC, marker=marker)


def detect_format(
    render: RenderMessages,
    tool_prompt: str,
    is_token: Callable[[str], bool],
    reasoning: ReasoningFormat | None = None,
) -> ToolFormat | None:
    """Detect the syntax of calls. `tool_prompt`: what the template shows the model about a tool.
    `reasoning`: the tokens around reasoning, which a template may write before calls also where
    there is none. Returns None if the syntax is unknown."""
    one, plain = _render_answer(render, _FIRST), _render_answer(render)
    if one is None or plain is None or _FIRST.name not in one:
        return _find_unrendered(tool_prompt, is_token)
    if "<|channel|>" in one and f"to=functions.{_FIRST.name}" in one:
        return HARMONY
    two = _render_answer(render, _FIRST, _SECOND)
    if two is not None and _SECOND.name not in two:
        two = None
    before, _, after = plain.partition(_PLAIN.content)
    start = len(_cut_open_tag(_common_prefix(one, before)))
    one, two = (_cut_reasoning(text[start:], reasoning) if text else None for text in (one, two))
    rendered = _Rendered(one or "", two, after)
    found = rendered.find_object_calls() or rendered.find_named_calls()
    if found is not None:
        found = _add_block(found, _render_answer(render, _MARKUP) or "")
    return found if found is not None and rendered.confirms(found) else None


def _render_answer(render: RenderMessages, *calls: ToolCall) -> str | None:
    """Render an answer with calls, or without them. Returns the text after the question."""
    answer = ChatMessage(role="assistant", tool_calls=calls) if calls else _PLAIN
    text = render([_QUESTION, answer])
    return None if text is None else text.partition(_QUESTION.content)[2]


def _add_block(found: ToolFormat, markup: str) -> ToolFormat:
    """Add to a format of tags what it writes around a string with markup. `markup`: an answer with
    such a string, as the template renders it."""
    if found.named is None or not isinstance(found.named.arguments, TaggedArguments):
        return found
    tags, value = found.named.arguments, json.loads(_MARKUP.arguments)["zqa"]
    before, _, after = markup.partition(value)
    opening = before.rpartition(tags.key_end.strip())[2].strip()
    closing = after.partition(tags.value_close.strip())[0].strip()
    if not opening or not closing:
        return found
    tags = msgspec.structs.replace(tags, block_open=opening, block_close=closing)
    return msgspec.structs.replace(
        found, named=msgspec.structs.replace(found.named, arguments=tags)
    )


def _cut_reasoning(text: str, reasoning: ReasoningFormat | None) -> str:
    """Cut the reasoning before the first call."""
    before = text.partition(_FIRST.name)[0]
    if reasoning is None or reasoning.end not in before:
        return text
    return text[before.rindex(reasoning.end) + len(reasoning.end) :]


def _find_unrendered(tool_prompt: str, is_token: Callable[[str], bool]) -> ToolFormat | None:
    if "probe_tool" not in tool_prompt:
        return None
    for marker, known in UNRENDERED.items():
        if is_token(marker) or marker in tool_prompt:
            return known
    return None


class _Rendered:
    """An answer with one call, and one with two, as the template renders them.

    one     pre  zqlook  … arguments …  end  close  closing
    two     pre  zqlook  … arguments …  end  next  zqseek …
    """

    def __init__(self, one: str, two: str | None, closing: str) -> None:
        """`closing`: text after the content of an answer without calls."""
        self._one = _strip_closing(one, closing)
        self._two = None if two is None else _strip_closing(two, closing)

    def confirms(self, found: ToolFormat) -> bool:
        """Whether the parser finds the calls that were rendered, in one piece and in many."""
        if any(call.id in text for call in (_FIRST, _SECOND) for text in found.literals):
            return False
        expected = [(call.name, json.loads(call.arguments)) for call in (_FIRST, _SECOND)]
        texts = [self._one, *([self._two] if self._two is not None else [])]
        return all(
            _parse(found, pieces) == expected[:count]
            for count, text in enumerate(texts, 1)
            for pieces in ([text], list(text))
        )

    def find_object_calls(self) -> ToolFormat | None:
        head = _OBJECT_HEAD.search(self._one)
        arguments = _ARGUMENTS_KEY.search(self._one)
        if head is None or arguments is None:
            return None
        prefix = self._one[: head.start()].strip()
        end = head.start() + _json_length(self._one[head.start() :])
        rest, is_array = self._one[end:].strip(), prefix.endswith("[")
        marker = prefix.removesuffix("[").strip()
        if not marker:
            return LLAMA3 if not is_array else None
        between = None
        if self._two is not None:
            second = self._two.find("{", end)
            between = self._two[end:second]
        shares_marker = between is not None and marker not in between
        return ToolFormat(
            marker=marker,
            close_marker=_first_tag(rest.removeprefix("]") if is_array else rest),
            is_array=is_array or (shares_marker and bool(rest)),
            name_key=head["key"],
            arguments_key=arguments[1],
        )

    def find_named_calls(self) -> ToolFormat | None:
        one = self._one
        pre, _, tail = one.partition(_FIRST.name)
        pre = pre.lstrip()
        found = _MARKER.match(pre)
        arguments = _find_arguments(tail)
        if found is None or arguments is None:
            return None
        marker, begin = found[0], pre[found.end() :]
        id_mark, head, syntax, rest = arguments
        next_begin, close, separator = "", "", ""
        end = rest.rstrip()
        if self._two is not None:
            length = len(one) - len(rest)
            between = self._two[length:].partition(_SECOND.name)[0]
            end = _cut_to_tag(_common_prefix(rest, between))
            if marker in between:
                separator, end = _space_before(between, marker), end.rstrip()
            else:
                next_begin, close = between[len(end) :], _first_tag(rest[len(end) :])
        return ToolFormat(
            marker=marker,
            close_marker=close,
            named=NamedCalls(
                arguments=syntax,
                begin=begin,
                next_begin=next_begin,
                id_mark=id_mark,
                name_end=head,
                end=end,
                separator=separator,
            ),
        )


def _find_arguments(tail: str) -> tuple[str, str, Arguments, str] | None:
    """Analyse the text after the name of the first call. Returns the text before the call's id, if
    it has one there, the text before the arguments, their syntax, and the text after them."""
    object_start = tail.find('{"zqa"')
    if object_start >= 0:
        id_mark, head = _split_call_id(tail[:object_start])
        end = object_start + _json_length(tail[object_start:])
        return id_mark, head, JsonArguments(), tail[end:]
    parts = re.fullmatch(
        r"(.*?)zqa(.*?)zqpear(.*?)zqb(.*?)7371(.*?)zqc(.*?)zqplum(.*)", tail, re.DOTALL
    )
    if parts is None:
        return None
    head, string, after_string, other, after_other, string_again, rest = parts.groups()
    if string != string_again:
        return None
    if other.strip() in ("=", ":") and string.startswith(other):
        quote = string[len(other) :]
        if not rest.startswith(quote) or not after_string.startswith(quote) or not quote:
            return None
        rest = rest[len(quote) :]
        separator = after_string[len(quote) :]
        literals = LiteralArguments(assign=other, quote=quote, separator=separator, close=rest[:1])
        return ("", head, literals, rest[1:]) if separator == after_other else None
    key_open = _common_suffix(_common_suffix(head, after_string), after_other)
    key_open = key_open[max(key_open.find("<"), 0) :]
    if not key_open:
        return None
    value_close = _common_prefix(after_string[: -len(key_open)], rest)
    if not value_close.strip() or not after_other.startswith(value_close.rstrip()):
        return None
    tags = TaggedArguments(
        key_open=key_open, key_end=string, key_end_other=other, value_close=value_close
    )
    return "", head[: -len(key_open)], tags, rest[len(value_close) :]


def _split_call_id(text: str) -> tuple[str, str]:
    """Split the text between name and arguments into what precedes the id of the call and what
    follows it, without the id. The first is empty if there is no id."""
    before, found, after = text.partition(_FIRST.id)
    if found:
        return before, after
    if text == _MISTRAL_ARGS:
        return _MISTRAL_CALL_ID, text
    number = re.fullmatch(r"([:#])0(.*)", text, re.DOTALL)
    return (number[1], number[2]) if number else ("", text)


def _parse(tool_format: ToolFormat, pieces: Sequence[str]) -> list[tuple[str, object]] | None:
    parser = ToolParser(tool_format, (_FIRST.name, _SECOND.name), lambda _, key: _TYPES.get(key))
    calls: list[list[str]] = []
    beside = ""
    for event in [event for piece in pieces for event in parser.push(piece)] + parser.finish():
        match event:
            case ParsedText(text=text):
                beside += text
            case ParsedCallStarted(name=name):
                if beside.strip():
                    return None
                calls.append([name, ""])
            case ParsedArguments(text=text):
                calls[-1][1] += text
            case _:
                pass
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return None


def _strip_closing(text: str, closing: str) -> str:
    """Remove the text that closes a message, as far as it does, from its end."""
    shared = _common_suffix(text, closing)
    before = text[: len(text) - len(shared)]
    if before != _cut_open_tag(before):  # the text that is shared begins within a tag
        shared = shared.partition(">")[2]
    return text[: len(text) - len(shared)]


def _json_length(text: str) -> int:
    return JsonScanner().feed(text)


def _space_before(text: str, marker: str) -> str:
    """Return the space before the marker in `text`."""
    before = text.partition(marker)[0]
    return before[len(before.rstrip()) :]


def _cut_open_tag(text: str) -> str:
    """Cut a tag that is not closed from the end of `text`."""
    opening = text.rfind("<")
    return text[:opening] if opening > text.rfind(">") else text


def _first_tag(text: str) -> str:
    """Return the text up to the end of its first tag."""
    found = re.match(r"\s*([^<]*<[^<>]+>)", text)
    return found[1] if found else text.strip()


def _cut_to_tag(text: str) -> str:
    """Cut `text` so that it does not end within a tag."""
    ends = [found.end() for found in _TAG_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def _common_prefix(one: str, other: str) -> str:
    same = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(same, min(len(one), len(other)))]


def _common_suffix(one: str, other: str) -> str:
    return _common_prefix(one[::-1], other[::-1])[::-1]

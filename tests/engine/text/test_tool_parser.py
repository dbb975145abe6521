"""Tests of the tool parser: text and tool calls are read from output in every format."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.text import (
    ChatMessage,
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    ParsedToolEvent,
    ToolCall,
    ToolFormat,
    ToolParser,
)
from continuo.engine.text.tool_format import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS
from tests.support.checkpoints import family_template, family_text

FORMATS = {format.name: format for format in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS)}
ALL = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)

Part = str | tuple[str, str, bool]
"""Text, or a call: name, arguments, whether they were complete."""


def parse(
    format: ToolFormat | None, pieces: Sequence[str], names: set[str] | None = None
) -> list[Part]:
    parser = ToolParser(format, names)
    events = [event for piece in pieces for event in parser.push(piece)]
    return join_deltas([*events, *parser.finish()])


def join_deltas(events: Sequence[ParsedToolEvent]) -> list[Part]:
    """Join deltas to parts; fails if the events are out of order."""
    parts: list[Part] = []
    name, arguments = None, ""
    for event in events:
        match event:
            case ParsedText(text):
                assert name is None
                assert text
                if parts and isinstance(parts[-1], str):
                    parts[-1] += text
                else:
                    parts.append(text)
            case ParsedCallStarted(started):
                assert name is None
                name, arguments = started, ""
            case ParsedArguments(text):
                assert name is not None
                arguments += text
            case ParsedCallEnded(complete):
                assert name is not None
                parts.append((name, arguments, complete))
                name = None
    assert name is None
    return parts


CALL = '{"name": "f", "arguments": {"a": [1, "}<\\""]}}'
ARGS = '{"a": [1, "}<\\""]}'
F = ("f", ARGS, True)

EXAMPLES: list[tuple[ToolFormat | None, str, list[Part]]] = [
    (None, "<tool_call>" + CALL, ["<tool_call>" + CALL]),
    # Hermes
    (HERMES, "just text <b> ", ["just text <b> "]),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", [F]),
    (HERMES, f"<tool_call>{CALL}</tool_call>", [F]),
    (HERMES, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n", ["Let me see.", F]),
    (HERMES, f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", [F, F]),
    (HERMES, f"<tool_call>{CALL}</tool_call> So.", [F, "So."]),
    (HERMES, '<tool_call>{"arguments": {"b": 2}, "name": "g"}', [("g", '{"b": 2}', True)]),
    (HERMES, '<tool_call>{"name": "g", "arguments": "{}"}</tool_call>', [("g", "{}", True)]),
    (HERMES, '<tool_call>{"name": "g"}</tool_call>', [("g", "{}", True)]),
    (HERMES, '<tool_call>{"name": "g", "arguments": null}</tool_call>', [("g", "{}", True)]),
    # Hermes, malformed
    (HERMES, "<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
    (HERMES, '<tool_call>{"nam": 1}', ['<tool_call>{"nam": 1}']),
    (HERMES, '<tool_call>{"name": 3}', ['<tool_call>{"name": 3}']),
    (HERMES, '<tool_call>{"name": "g"', ['<tool_call>{"name": "g"']),
    (HERMES, "a <tool_call>", ["a <tool_call>"]),
    (HERMES, "a <tool_ca", ["a <tool_ca"]),
    (HERMES, f"<tool_call><tool_call>{CALL}</tool_call>", ["<tool_call>", F]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": [1', [("f", '{"a": [1', False)]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>.',
        [("f", '{"a": 1', False), "]}", "."],
    ),
    (HERMES, f"<tool_call>{CALL[:-1]}</tool_call>.", [F, "."]),
    (HERMES, f"<tool_call>{CALL}", [F]),
    (HERMES, f"<tool_call>{CALL}</tool_", [F]),
    (HERMES, f"<tool_call>{CALL} and</tool_call>.", [F, "and", "."]),
    # Llama 3
    (LLAMA3, '{"name": "f", "parameters": {"x": "1"}}', [("f", '{"x": "1"}', True)]),
    (LLAMA3, '\n<|python_tag|>{"name": "f", "parameters": {}}', [("f", "{}", True)]),
    (LLAMA3, '{"type": "function", "name": "f", "parameters": {}}', [("f", "{}", True)]),
    (LLAMA3, f"{CALL}; {CALL}", [F, F]),
    (LLAMA3, f"Here: {CALL}", [f"Here: {CALL}"]),
    (LLAMA3, '{"colour": "red"}', ['{"colour": "red"}']),
    (LLAMA3, '{"name": "Tom"}', ['{"name": "Tom"}']),
    (LLAMA3, "<|python_tag|>search.call()", ["<|python_tag|>search.call()"]),
    # Mistral
    (MISTRAL, f"[TOOL_CALLS] [{CALL}]", [F]),
    (MISTRAL, f"Yes.[TOOL_CALLS][{CALL}, {CALL}]", ["Yes.", F, F]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "a}1"}]', [("f", "{}", True)]),
    (MISTRAL, f"[TOOL_CALLS] {CALL}", [F]),
    (MISTRAL, "[TOOL_CALLS] maybe", ["[TOOL_CALLS] maybe"]),
    (MISTRAL, "[TOOL_CALLS] [", ["[TOOL_CALLS] ["]),
    (MISTRAL_ARGS, f"[TOOL_CALLS]f[ARGS]{ARGS}[TOOL_CALLS]f[CALL_ID]a1[ARGS] {ARGS}", [F, F]),
    (MISTRAL_ARGS, "[TOOL_CALLS]f g[ARGS]{}", ["[TOOL_CALLS]f g[ARGS]{}"]),
    (MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]3", ["[TOOL_CALLS]f[ARGS]3"]),
    (MISTRAL_ARGS, "[TOOL_CALLS]f[CALL_I", ["[TOOL_CALLS]f[CALL_I"]),
]


def merged(parts: Sequence[Part]) -> list[Part]:
    """Join adjacent texts."""
    out: list[Part] = []
    for part in parts:
        if out and isinstance(part, str) and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out


@pytest.mark.parametrize(("format", "text", "expected"), EXAMPLES)
def test_parser_reads_example_outputs(
    format: ToolFormat | None, text: str, expected: list[Part]
) -> None:
    assert parse(format, [text]) == merged(expected)
    assert parse(format, list(text)) == merged(expected)


SNIPPETS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *("<|python_tag|>", "{", "}", "[", "]", ",", ";", '"', "\\", " ", "\n", "a", "f", "é"),
        *(CALL, CALL[:-1], ARGS, '{"name": "f", "arguments": ', '{"name": "f"', '"arguments": {}'),
    ]
)


@ALL
@given(st.lists(SNIPPETS, max_size=8).map("".join), st.lists(st.integers(0, 200), max_size=5))
@example(f"<tool_call>{CALL}</tool_call>x", [3])
def test_result_does_not_depend_on_how_the_text_is_split(
    format: ToolFormat, text: str, cuts: list[int]
) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole = parse(format, [text])
    assert parse(format, pieces) == whole
    assert parse(format, list(text)) == whole


@ALL
@given(text=st.text(st.characters(exclude_characters="<[{"), max_size=30))
def test_text_without_markers_passes_unchanged(format: ToolFormat, text: str) -> None:
    parser = ToolParser(format)
    events = [event for letter in text for event in parser.push(letter)]
    streamed = join_deltas(events)
    assert streamed == ([text.rstrip()] if text.strip() else []), (
        "only trailing spaces are held back"
    )
    assert join_deltas([*events, *parser.finish()]) == ([text] if text else [])


WORDS = st.text('ab "\\\n<{}]é😀你', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.just("</tool_call>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["get_weather", "look"]), st.dictionaries(WORDS, JSON, max_size=4)),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize(
    "name",
    ["qwen2_5", "qwen3", "llama3", "mistral_v3", "mistral_small", "mistral_args", BUNDLED_MODEL],
)
@settings(max_examples=30, deadline=None)
@given(calls=CALLS, size=st.integers(1, 50))
def test_calls_rendered_by_the_template_are_parsed_back(
    name: str, calls: list[tuple[str, dict[str, object]]], size: int
) -> None:
    """Calls are rendered to ids, detokenised one id at a time, and parsed in pieces."""
    template, text = family_template(name), family_text(name)
    tool_calls = tuple(
        ToolCall(name=tool, arguments=json.dumps(arguments), id=f"call{at:05}")
        for at, (tool, arguments) in enumerate(calls[: 1 if name == "llama3" else None])
    )
    question = ChatMessage(role="user", content="?")
    ids = template.extend([question], [ChatMessage(role="assistant", tool_calls=tool_calls)]).ids
    header = template.encode_header("user")
    detokenizer = text.create_detokenizer()
    rendered = "".join(detokenizer.push([id]) for id in ids[len(header) :]) + detokenizer.flush()
    pieces = [rendered[at : at + size] for at in range(0, len(rendered), size)]
    if name == "qwen3":
        pieces = [rendered.partition("</think>")[2]]
    parsed = parse(template.tool_format, pieces)
    assert [
        (part[0], json.loads(part[1]), part[2]) for part in parsed if isinstance(part, tuple)
    ] == [(tool, arguments, True) for tool, arguments in calls[: len(tool_calls)]]
    assert not [part for part in parsed if isinstance(part, str)]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *[(BUNDLED_MODEL, HERMES), ("qwen2_5", HERMES), ("qwen3", HERMES), ("llama3", LLAMA3)],
        *[("mistral_v3", MISTRAL), ("mistral_small", MISTRAL), ("mistral_args", MISTRAL_ARGS)],
        *[("llama2", None), ("gemma", None)],
    ],
)
def test_tool_format_is_detected_from_the_template(name: str, format: ToolFormat | None) -> None:
    assert family_template(name).tool_format == format


def test_arguments_are_streamed_as_they_arrive() -> None:
    parser = ToolParser(HERMES)
    assert parser.push('<tool_call>\n{"name": "f", "argu') == []
    assert parser.push('ments": ') == []
    assert parser.push('{"city": "Pa') == [ParsedCallStarted("f"), ParsedArguments('{"city": "Pa')]
    assert parser.push('ris"}') == [ParsedArguments('ris"}')]
    assert parser.push("}") == [ParsedCallEnded()]
    assert parser.push("\n</tool_call>") == []


def test_call_without_a_marker_must_name_a_known_tool() -> None:
    text = '{"name": "g", "parameters": {}}'
    assert parse(LLAMA3, [text], {"f"}) == [text]
    assert parse(LLAMA3, [text], {"g"}) == [("g", "{}", True)]
    assert parse(LLAMA3, ["<|python_tag|>" + text], {"f"}) == [("g", "{}", True)]


def test_unbounded_head_of_a_call_is_passed_as_text() -> None:
    parser = ToolParser(HERMES)
    events = parser.push('<tool_call>{"arguments": {"a": "')
    for _ in range(40):
        events += parser.push("x" * 1000)
    assert sum(len(event.text) for event in events if isinstance(event, ParsedText)) > 30_000

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
from tests.support.checkpoints import family, template_of

FORMATS = {format.name: format for format in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS)}
ALL = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)

Said = str | tuple[str, str, bool]
"""Text, or a call: name, arguments, whether they were complete."""


def read(
    format: ToolFormat | None, pieces: Sequence[str], names: set[str] | None = None
) -> list[Said]:
    parser = ToolParser(format, names)
    events = [event for piece in pieces for event in parser.push(piece)]
    return summed([*events, *parser.finish()])


def summed(events: Sequence[ParsedToolEvent]) -> list[Said]:
    """Deltas put together; fails if the events are not in order."""
    said: list[Said] = []
    name, arguments = None, ""
    for event in events:
        match event:
            case ParsedText(text):
                assert name is None
                assert text
                if said and isinstance(said[-1], str):
                    said[-1] += text
                else:
                    said.append(text)
            case ParsedCallStarted(started):
                assert name is None
                name, arguments = started, ""
            case ParsedArguments(text):
                assert name is not None
                arguments += text
            case ParsedCallEnded(complete):
                assert name is not None
                said.append((name, arguments, complete))
                name = None
    assert name is None
    return said


CALL = '{"name": "f", "arguments": {"a": [1, "}<\\""]}}'
ARGS = '{"a": [1, "}<\\""]}'
F = ("f", ARGS, True)

EXAMPLES: list[tuple[ToolFormat | None, str, list[Said]]] = [
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
    # ... and wrong
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


def merged(said: Sequence[Said]) -> list[Said]:
    """Neighbouring texts as one."""
    out: list[Said] = []
    for one in said:
        if out and isinstance(one, str) and isinstance(out[-1], str):
            out[-1] += one
        else:
            out.append(one)
    return out


@pytest.mark.parametrize(("format", "text", "expected"), EXAMPLES)
def test_examples(format: ToolFormat | None, text: str, expected: list[Said]) -> None:
    assert read(format, [text]) == merged(expected)
    assert read(format, list(text)) == merged(expected)


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
def test_pieces_do_not_matter(format: ToolFormat, text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole = read(format, [text])
    assert read(format, pieces) == whole
    assert read(format, list(text)) == whole


@ALL
@given(text=st.text(st.characters(exclude_characters="<[{"), max_size=30))
def test_text_without_markers_stays_itself(format: ToolFormat, text: str) -> None:
    parser = ToolParser(format)
    shown = [event for letter in text for event in parser.push(letter)]
    told = summed(shown)
    assert told == ([text.rstrip()] if text.strip() else []), "only spaces at the end wait"
    assert summed([*shown, *parser.finish()]) == ([text] if text else [])


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
def test_what_the_template_writes_is_read_back(
    name: str, calls: list[tuple[str, dict[str, object]]], size: int
) -> None:
    """Rendered as ids, detokenised one id at a time, parsed in pieces."""
    template, text = template_of(name), family(name)
    made = tuple(
        ToolCall(name=called, arguments=json.dumps(arguments), id=f"call{at:05}")
        for at, (called, arguments) in enumerate(calls[: 1 if name == "llama3" else None])
    )
    question = ChatMessage(role="user", content="?")
    ids = template.extend([question], [ChatMessage(role="assistant", tool_calls=made)]).ids
    header = template.encode_header("user")
    detokenizer = text.create_detokenizer()
    written = "".join(detokenizer.push([id]) for id in ids[len(header) :]) + detokenizer.flush()
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    if name == "qwen3":
        pieces = [written.partition("</think>")[2]]
    found = read(template.tool_format, pieces)
    assert [
        (said[0], json.loads(said[1]), said[2]) for said in found if isinstance(said, tuple)
    ] == [(called, arguments, True) for called, arguments in calls[: len(made)]]
    assert not [said for said in found if isinstance(said, str)]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *[(BUNDLED_MODEL, HERMES), ("qwen2_5", HERMES), ("qwen3", HERMES), ("llama3", LLAMA3)],
        *[("mistral_v3", MISTRAL), ("mistral_small", MISTRAL), ("mistral_args", MISTRAL_ARGS)],
        *[("llama2", None), ("gemma", None)],
    ],
)
def test_the_format_is_seen_in_the_template(name: str, format: ToolFormat | None) -> None:
    assert template_of(name).tool_format == format


def test_arguments_are_shown_as_they_come() -> None:
    parser = ToolParser(HERMES)
    assert parser.push('<tool_call>\n{"name": "f", "argu') == []
    assert parser.push('ments": ') == []
    assert parser.push('{"city": "Pa') == [ParsedCallStarted("f"), ParsedArguments('{"city": "Pa')]
    assert parser.push('ris"}') == [ParsedArguments('ris"}')]
    assert parser.push("}") == [ParsedCallEnded()]
    assert parser.push("\n</tool_call>") == []


def test_without_a_marker_only_known_tools_are_called() -> None:
    text = '{"name": "g", "parameters": {}}'
    assert read(LLAMA3, [text], {"f"}) == [text]
    assert read(LLAMA3, [text], {"g"}) == [("g", "{}", True)]
    assert read(LLAMA3, ["<|python_tag|>" + text], {"f"}) == [("g", "{}", True)]


def test_an_endless_head_is_text() -> None:
    parser = ToolParser(HERMES)
    shown = parser.push('<tool_call>{"arguments": {"a": "')
    for _ in range(40):
        shown += parser.push("x" * 1000)
    assert sum(len(event.text) for event in shown if isinstance(event, ParsedText)) > 30_000

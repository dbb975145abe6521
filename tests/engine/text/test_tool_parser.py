"""Tests of the tool parser: text and tool calls are read from output in every format."""

import ast
import json
import warnings
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
from continuo.engine.text.tool_format import (
    GLM4,
    HARMONY,
    HERMES,
    LFM2,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    PHI4,
    PYTHONIC,
)
from continuo.engine.text.tool_writer import write_calls
from tests.support.checkpoints import PUBLISHED, family_template, family_text

FORMATS = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral_args": MISTRAL_ARGS,
    "pythonic": PYTHONIC,
    "glm4": GLM4,
}
COMMAND_R7B = ToolFormat(
    marker="<|START_ACTION|>",
    close_marker="<|END_ACTION|>",
    is_array=True,
    name_key="tool_name",
    arguments_key="parameters",
)
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
PYTHON_ARGS = '{"a": 1, "b": "x, y)]"}'
PYTHON_TYPES = r"""{"a": "it's \"so\"\n", "b": [1, {"c": null}], "d": -1.5, "e": true, "g": "é"}"""

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
    # Pythonic, of Llama 3.2 and Llama 4
    (PYTHONIC, "[f()]", [("f", "{}", True)]),
    (PYTHONIC, "\n[f(a=1, b='x, y)]'), g()]\n", [("f", PYTHON_ARGS, True), ("g", "{}", True)]),
    (PYTHONIC, "<|python_start|>[f(a=1, b='x, y)]')]", [("f", PYTHON_ARGS, True)]),
    (PYTHONIC, "So: <|python_start|>[f()] and", ["So:", ("f", "{}", True), "and"]),
    (
        PYTHONIC,
        """[f(a="it's \\"so\\"\\n", b=[1, {'c': None}], d=-1.5, e=True, g="\\u00e9")]""",
        [("f", PYTHON_TYPES, True)],
    ),
    (PYTHONIC, "[f(city=New York, days=3)]", [("f", '{"city": "New York", "days": 3}', True)]),
    (PYTHONIC, "Here: [f()]", ["Here: [f()]"]),
    (PYTHONIC, "[1] says f(a=1)", ["[1] says f(a=1)"]),
    (PYTHONIC, "[f, g]", ["[f, g]"]),
    (PYTHONIC, "[f", ["[f"]),
    (PYTHONIC, "[f(a=1", [("f", "", False)]),
    (PYTHONIC, "[f(a=1, b='x", [("f", '{"a": 1', False)]),
    (PYTHONIC, "[f(a=1, b)]", [("f", '{"a": 1', False)]),
    (PYTHONIC, "<|python_start|>print(1)", ["<|python_start|>print(1)"]),
    # GLM-4
    (GLM4, f"f\n{ARGS}", [F]),
    (GLM4, f"\nf\n{ARGS}\n", [F]),
    (GLM4, f"f\n{ARGS}\nf\n{ARGS}", [F, F]),
    (GLM4, f"f\n{ARGS}\nThat is it.", [F, "That is it."]),
    (GLM4, "\nHello, f.", ["\nHello, f."]),
    (GLM4, "f is", ["f is"]),
    (GLM4, "f", ["f"]),
    (GLM4, "f\n[1]", ["f\n[1]"]),
    (GLM4, 'f\n{"a": [1', [("f", '{"a": [1', False)]),
    (GLM4, 'f\n{"a": 1]}', [("f", '{"a": 1', False), "]}"]),
    # Phi-4-mini
    (PHI4, f"<|tool_call|>[{CALL}, {CALL}]<|/tool_call|>", [F, F]),
    (PHI4, f"Yes.<|tool_call|>[{CALL}]<|/tool_call|> So.", ["Yes.", F, "So."]),
    (PHI4, "<|tool_call|>no<|/tool_call|>", ["<|tool_call|>no<|/tool_call|>"]),
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
        *("<|python_start|>", "f(", "f\n", "=", "(", ")", "'", "[f(a=1)]"),
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
    if format == GLM4:  # its first word may be the name of a tool until the next character
        text = "?" + text
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
@pytest.mark.long
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
        *[("llama2", HERMES), ("gemma", HERMES), ("lfm2", LFM2), ("phi4_mini", PHI4)],
        *[("glm4_9b", GLM4), ("glm4_0414", GLM4), ("llama4_pythonic", PYTHONIC)],
        *[("gpt_oss", HARMONY), ("odd_calls", None), ("command_r7b", COMMAND_R7B)],
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


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (LLAMA3, '{"name": "g", "parameters": {}}'),
        (PYTHONIC, "[g()]"),
        (GLM4, "g\n{}"),
    ],
)
def test_call_without_a_marker_must_name_a_known_tool(format: ToolFormat, text: str) -> None:
    assert parse(format, [text], {"f"}) == [text]
    assert parse(format, [text], {"g"}) == [("g", "{}", True)]
    if format.marker:
        assert parse(format, [format.marker + text], {"f"}) == [("g", "{}", True)]


def test_unbounded_head_of_a_call_is_passed_as_text() -> None:
    parser = ToolParser(HERMES)
    events = parser.push('<tool_call>{"arguments": {"a": "')
    for _ in range(40):
        events += parser.push("x" * 1000)
    assert sum(len(event.text) for event in events if isinstance(event, ParsedText)) > 30_000


PLAIN = st.text("ab c-é😀你.", min_size=1, max_size=8).filter(lambda text: text == text.strip())
SIMPLE_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["get_weather", "look-up.v2"]),
        st.dictionaries(
            st.sampled_from(["city", "days", "why_not"]),
            PLAIN | st.integers() | st.booleans() | st.lists(st.integers(), max_size=2),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=3,
)


def render_calls(name: str, calls: Sequence[tuple[str, dict[str, object]]]) -> str:
    """Render a message of calls with the template. Returns its text after the header, as the
    detokenizer shows it."""
    template, text = family_template(name), family_text(name)
    tool_calls = tuple(
        ToolCall(name=tool, arguments=json.dumps(arguments), id=f"call{at:05}")
        for at, (tool, arguments) in enumerate(calls)
    )
    question = ChatMessage(role="user", content="?")
    ids = template.extend([question], [ChatMessage(role="assistant", tool_calls=tool_calls)]).ids
    detokenizer = text.create_detokenizer()
    rendered = "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush()
    assert template.tool_format is not None
    beginning = template.tool_format.marker
    if template.tool_format.allows_bare and template.tool_format.named is not None:
        beginning = template.tool_format.named.begin + calls[0][0]
    return rendered[rendered.index(beginning) :]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "gpt_oss"] + ["chatml"])
@settings(max_examples=25, deadline=None)
@given(calls=SIMPLE_CALLS, size=st.integers(1, 50))
def test_published_templates_round_trip_calls(
    name: str, calls: list[tuple[str, dict[str, object]]], size: int
) -> None:
    rendered = render_calls(name, calls)
    template = family_template(name)
    at = 0
    events: list[ParsedToolEvent] = []
    parser = ToolParser(template.tool_format, None, lambda _, key: types.get(key))
    # Each call has its own types, as if every tool declared its arguments alike.
    types: dict[str, frozenset[str] | None] = {}
    for _, arguments in calls:
        for key, value in arguments.items():
            types[key] = (types.get(key) or frozenset()) | type_of(value)
    while at < len(rendered):
        events += parser.push(rendered[at : at + size])
        at += size
    parsed = join_deltas([*events, *parser.finish()])
    found = [(part[0], json.loads(part[1]), part[2]) for part in parsed if isinstance(part, tuple)]
    assert found == [(tool, arguments, True) for tool, arguments in calls]


WRITES_OTHERWISE = {
    *("gpt_oss", "lfm2_5"),
    *("kimi_k2", "kimi_k2_thinking", "mistral_nemo", "mistral_small_3_2", "command_r7b"),
    "reka_edge",
}
"""Harmony, a template with quotes of Python's, those that write the ids of calls, and one without a
line break between two calls."""


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in WRITES_OTHERWISE])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_are_written_as_the_template_renders_them(name: str, count: int) -> None:
    calls = [("get_weather", {"city": city, "days": 3}) for city in ("Rome", "Oslo", "Bonn")]
    tool_format = family_template(name).tool_format
    assert tool_format is not None
    written = write_calls(tool_format, calls[:count])
    assert render_calls(name, calls[:count])[: len(written)] == written


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "gpt_oss"])
def test_arguments_of_every_type_are_read_in_pieces_of_any_size(name: str) -> None:
    arguments: dict[str, object] = {
        "path": "a/b.txt",
        "lines": [1, 2, 3],
        "all": True,
        "none": False,
        "count": 12,
        "note": "5",
        "text": "two words: a=b",
    }
    types = {key: type_of(value) for key, value in arguments.items()}
    rendered = render_calls(name, [("read", arguments)])
    for size in (1, 2, 3, 7, 1000):
        parser = ToolParser(
            family_template(name).tool_format, {"read"}, lambda _, key: types.get(key)
        )
        events: list[ParsedToolEvent] = []
        for at in range(0, len(rendered), size):
            events += parser.push(rendered[at : at + size])
        [(tool, text, complete)] = [
            part for part in join_deltas([*events, *parser.finish()]) if isinstance(part, tuple)
        ]
        assert (tool, json.loads(text), complete) == ("read", arguments, True)


def type_of(value: object) -> frozenset[str]:
    match value:
        case bool():
            return frozenset(["boolean"])
        case int():
            return frozenset(["integer"])
        case str():
            return frozenset(["string"])
        case _:
            return frozenset(["array"])


QWEN_CODER = family_template("qwen3_coder").tool_format
STRINGS = lambda _name, _key: frozenset(["string"])  # noqa: E731


def test_long_string_between_tags_is_streamed() -> None:
    parser = ToolParser(QWEN_CODER, {"write"}, STRINGS)
    head = "<tool_call>\n<function=write>\n<parameter=text>\n"
    assert parser.push(head) == [ParsedCallStarted("write"), ParsedArguments('{"text": ')]
    streamed = "".join(
        event.text
        for _ in range(50)
        for event in parser.push("line\n")
        if isinstance(event, ParsedArguments)
    )
    assert streamed.startswith('"line\\n')
    assert len(streamed) > 250
    rest = parser.push("\n</parameter>\n</function>\n</tool_call>") + parser.finish()
    whole = '{"text": ' + streamed + "".join(e.text for e in rest if isinstance(e, ParsedArguments))
    assert json.loads(whole) == {"text": "line\n" * 50}
    assert rest[-1] == ParsedCallEnded()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", "{}", True)]),
        ("<tool_call>\n<function=f>\n<parameter=a>\n1", [("f", '{"a": ', False)]),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n",
            [("f", '{"a": "1"}', True)],
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>?",
            [("f", '{"a": "1"}', False), "?"],
        ),
        ("<tool_call> <b>", ["<tool_call> <b>"]),
        ("<tool_call>\n<function=f", ["<tool_call>\n<function=f"]),
    ],
)
def test_malformed_calls_between_tags(text: str, expected: list[Part]) -> None:
    parser = ToolParser(QWEN_CODER, None, STRINGS)
    events = [event for letter in text for event in parser.push(letter)]
    assert join_deltas([*events, *parser.finish()]) == expected


def read_literal(source: str) -> object:
    """Read a call of a pythonic format with one argument, in pieces of three characters."""
    text = f"<|tool_call_start|>[f(a={source})]<|tool_call_end|>"
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    [(_, arguments, complete)] = [part for part in parse(LFM2, pieces) if isinstance(part, tuple)]
    assert complete
    return json.loads(arguments)["a"]


@settings(max_examples=300)
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                *(
                    "\\",
                    "\\\\",
                    "\\n",
                    "\\t",
                    "\\a",
                    "\\d",
                    "\\w+",
                    "\\'",
                    "\\0",
                    "\\12",
                    "\\1a",
                    "\\x41",
                ),
                *(
                    "\\xfg",
                    "\\u00e9",
                    "\\U0001F600",
                    "\\u12",
                    "\\N",
                    "C:\\dir",
                    "é",
                    "😀",
                    " ",
                    "a",
                ),
            ]
        ),
        max_size=6,
    ),
)
@example(pieces=["\\d", "+"])
@example(pieces=["C:\\dir"])
def test_strings_are_read_as_python_reads_them(pieces: list[str]) -> None:
    source = f"'{''.join(pieces)}'"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = ast.literal_eval(source)
        except SyntaxError:
            return
    assert read_literal(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"'C:\users'", r"C:\users"),
        (r"'\x4'", r"\x4"),
        (r"'\ud83d\ude00'", "😀"),
        (r"'\ud83d.'", "\ufffd."),
        (r'"a\/b"', "a/b"),
        (r"'a\/b'", r"a\/b"),
    ],
)
def test_escapes_that_python_refuses(source: str, expected: str) -> None:
    assert read_literal(source) == expected


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("value", ["a <b> & c\n", "]]> a</param>", "<![CDATA[x]]>", "plain"])
def test_string_in_a_block_is_read_without_it(value: str, size: int) -> None:
    for name, is_block in (("minicpm5", True), ("qwen3_coder", False)):
        rendered = render_calls(name, [("f", {"a": value})])
        assert ("<![CDATA[" in rendered.replace(value, "")) == (is_block and value != "plain")
        parser = ToolParser(family_template(name).tool_format, {"f"}, STRINGS)
        events: list[ParsedToolEvent] = []
        for at in range(0, len(rendered), size):
            events += parser.push(rendered[at : at + size])
        [(_, text, complete)] = [
            part for part in join_deltas([*events, *parser.finish()]) if isinstance(part, tuple)
        ]
        assert (json.loads(text), complete) == ({"a": value}, True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'it's 5 o'clock'", "it's 5 o'clock"),
        ("['it's', 'he's']", ["it's", "he's"]),
        ("{'it's': 'a'b'}", {"it's": "a'b"}),
        (r"'it\'s'", "it's"),
        ('"say "hi" now"', 'say "hi" now'),
        ("''", ""),
    ],
)
def test_quote_before_no_delimiter_is_part_of_its_string(source: str, expected: object) -> None:
    assert read_literal(source) == expected

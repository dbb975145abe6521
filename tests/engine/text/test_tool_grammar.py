"""Tests of tool grammars in the format of every family: output that may or must call tools."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from continuo.engine.sampling import Grammar
from continuo.engine.text import (
    CallableTool,
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    ToolCallRules,
    ToolFormat,
    ToolParser,
)
from continuo.engine.text.tool_format import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS
from continuo.engine.text.tool_grammar import build_tool_grammar
from continuo.engine.text.tool_writer import write_calls
from tests.engine.text.test_grammar import compiler_of, draw_text
from tests.support.checkpoints import PUBLISHED, family_template, family_text

pytestmark = pytest.mark.torch

FAMILIES_WITH_TOOLS = [
    "demo",
    "qwen2_5",
    "qwen3",
    "llama3",
    "mistral_v3",
    "mistral_small",
    "mistral_args",
    *(name for name in PUBLISHED if name != "gpt_oss"),
    "chatml",
]
OTHER_FAMILIES_WITH_TOOLS = [
    "lfm2",
    "lfm2_5",
    "phi4_mini",
    "glm4_9b",
    "glm4_0414",
    "llama3_2_pythonic",
    "llama4_pythonic",
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    CallableTool("get_weather", json.dumps(SCHEMA)),
    CallableTool('say "hi"'),
    CallableTool("get_time"),
]
NO_ARGUMENTS = CallableTool(
    "get_time", '{"type": "object", "properties": {}, "additionalProperties": false}'
)
TYPES = {"city": frozenset(["string"]), "days": frozenset(["integer"])}
ParsedCall = tuple[str, Any]


def draw_output(name: str, grammar: Grammar, seed: int) -> str:
    text = family_text(name)
    output = draw_text(text, compiler_of(name).create_matcher(grammar, text.stop_ids), seed)
    assert output is not None
    return output


def parse(
    format: ToolFormat | None, output: str, tools: Sequence[CallableTool] = TOOLS
) -> tuple[str, list[ParsedCall]]:
    """Return the text beside the calls, and the calls; each call must be complete."""
    parser = ToolParser(format, [tool.name for tool in tools], lambda _, key: TYPES.get(key))
    text, calls = "", list[list[str]]()
    for event in [*parser.push(output), *parser.finish()]:
        match event:
            case ParsedText(text=piece):
                text += piece
            case ParsedCallStarted(name=name):
                calls.append([name, ""])
            case ParsedArguments(text=piece):
                calls[-1][1] += piece
            case ParsedCallEnded(is_complete=complete):
                assert complete, output
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def check_schemas(calls: list[ParsedCall]) -> bool:
    for name, arguments in calls:
        assert name in [tool.name for tool in TOOLS]
        jsonschema.validate(arguments, SCHEMA if name == "get_weather" else {"type": "object"})
    return True


@pytest.mark.parametrize("name", FAMILIES_WITH_TOOLS)
@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_follow_their_schemas(name: str, parallel: bool) -> None:
    template = family_template(name)
    assert template.tool_format is not None
    # Names are not quoted in all formats.
    tools = TOOLS if template.tool_format.named is None else [TOOLS[0], NO_ARGUMENTS]
    grammar = template.build_tool_grammar(
        tools, ToolCallRules(is_required=True, allows_parallel=parallel)
    )
    assert grammar is not None
    counts: set[int] = set()
    for seed in range(300):
        text, calls = parse(template.tool_format, draw_output(name, grammar, seed))
        assert text.strip() == ""
        assert check_schemas(calls)
        counts.add(len(calls))
        if seed >= 20 and (not parallel or max(counts) > 1):
            break
    assert min(counts) == 1
    if name not in PUBLISHED:  # there, calls are too long for two of them to be drawn
        assert (max(counts) > 1) == parallel


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "gpt_oss"])
@pytest.mark.parametrize("parallel", [True, False])
def test_second_call_is_allowed_if_calls_may_be_parallel(name: str, parallel: bool) -> None:
    template, text = family_template(name), family_text(name)
    tools = [TOOLS[0], TOOLS[2]]
    grammar = template.build_tool_grammar(
        tools, ToolCallRules(is_required=True, allows_parallel=parallel)
    )
    assert grammar is not None
    assert template.tool_format is not None
    calls = [("get_weather", {"city": "Köln", "days": 3}), ("get_time", {"zone": "here"})]
    written = write_calls(template.tool_format, calls)
    assert accepts(name, grammar, text.encode(written)) == parallel
    assert accepts(name, grammar, text.encode(write_calls(template.tool_format, calls[:1])))
    wrong = write_calls(template.tool_format, [("get_weather", {"city": "Bonn", "days": 3})])
    assert not accepts(name, grammar, text.encode(wrong))


@pytest.mark.parametrize("name", OTHER_FAMILIES_WITH_TOOLS)
def test_value_outside_the_schema_is_refused(name: str) -> None:
    template, text = family_template(name), family_text(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert template.tool_format is not None
    for city in ("Köln", "Bonn"):
        written = write_calls(template.tool_format, [("get_weather", {"city": city, "days": 3})])
        assert accepts(name, grammar, text.encode(written)) == (city == "Köln")


CDATA = "<![CDATA[a </param> b]]>"
TEXT_SCHEMA = '{"type": "object", "properties": {"text": {"type": "string"}}}'


@pytest.mark.parametrize("schema", [TEXT_SCHEMA, '{"type": "object"}'])
@pytest.mark.parametrize(
    ("value", "text"),
    [(CDATA, "a </param> b"), ("a </param> b", None), ("<![CDATA[a", None), ("a < b", "a < b")],
)
def test_forced_call_may_have_a_block_with_the_end_of_an_argument(
    schema: str, value: str, text: str | None
) -> None:
    template = family_template("minicpm5")
    tool = CallableTool("look_up", schema)
    grammar = template.build_tool_grammar([tool], ToolCallRules(is_required=True))
    assert grammar is not None
    output = f'<function name="look_up"><param name="text">{value}</param></function>'
    ids = family_text("minicpm5").encode(output)
    assert accepts("minicpm5", grammar, ids) == (text is not None)
    if text is not None:
        assert parse(template.tool_format, output, [tool]) == ("", [("look_up", {"text": text})])


def accepts(name: str, grammar: Grammar, ids: Sequence[int]) -> bool:
    """Whether the ids are a whole match of the grammar."""
    text = family_text(name)
    matcher = compiler_of(name).create_matcher(grammar, text.stop_ids)
    for id in ids:
        mask = matcher.compute_bitmask()
        if not mask[id >> 3] >> (id & 7) & 1:
            return False
        matcher.accept(id)
    mask = matcher.compute_bitmask()
    return any(mask[id >> 3] >> (id & 7) & 1 for id in text.stop_ids)


@pytest.mark.parametrize("name", FAMILIES_WITH_TOOLS)
def test_optional_calls_follow_their_schemas(name: str) -> None:
    """Text is free, and only a call may follow the marker. The marker is given, because random ids
    would rarely contain it."""
    template, text = family_template(name), family_text(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert template.tool_format is not None
    call_count = 0
    for seed in range(12):
        matcher = compiler_of(name).create_matcher(grammar, text.stop_ids)
        opening = "Let me see." if not template.tool_format.allows_bare else ""
        marker = "{" if template.tool_format.allows_bare else template.tool_format.marker
        named = template.tool_format.named
        if template.tool_format.allows_bare and named is not None:
            marker = named.begin or f"get_weather{named.name_end}"
        for id in [*text.encode_untrusted(opening), *text.encode(marker)]:
            mask = matcher.compute_bitmask()
            if not mask[id >> 3] >> (id & 7) & 1:
                continue  # a space that SentencePiece puts before the marker
            matcher.accept(id)
        rest = draw_text(text, matcher, seed)
        assert rest is not None
        _, calls = parse(template.tool_format, opening + marker + rest)
        assert check_schemas(calls)
        call_count += len(calls)
    assert call_count >= 12


@pytest.mark.parametrize("name", FAMILIES_WITH_TOOLS)
def test_text_before_a_call_is_unconstrained(name: str) -> None:
    template, text = family_template(name), family_text(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    source = random.Random(1)
    for _ in range(5):
        matcher = compiler_of(name).create_matcher(grammar, text.stop_ids)
        for id in text.encode_untrusted("Hello, {world}: 3 < 4. ") * source.randint(1, 3):
            mask = matcher.compute_bitmask()
            assert mask[id >> 3] >> (id & 7) & 1
            assert all(mask[id >> 3] >> (id & 7) & 1 for id in text.stop_ids), (
                "the text may end anywhere"
            )
            matcher.accept(id)


@pytest.mark.parametrize("name", FAMILIES_WITH_TOOLS)
def test_text_cannot_spell_out_the_marker(name: str) -> None:
    """A marker spelt out in text would be parsed as a call that follows no schema."""
    template, text = family_template(name), family_text(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert template.tool_format is not None
    marker = template.tool_format.marker
    if text._tokenizer.id_of(marker) is None:  # pyright: ignore[reportPrivateUsage]
        pytest.skip("the marker is no token: spelt out, it begins a call that follows its schema")
    plain = text._tokenizer.encode_untrusted  # pyright: ignore[reportPrivateUsage]
    spelt = [id for letter in "So, " + marker for id in plain(letter, is_continuation=True)]
    matcher = compiler_of(name).create_matcher(grammar, text.stop_ids)
    for position, id in enumerate(spelt):
        mask = matcher.compute_bitmask()
        if not mask[id >> 3] >> (id & 7) & 1:
            assert position >= len(spelt) - 2, "all but the end of the marker is plain text"
            return
        matcher.accept(id)
    raise AssertionError("the text spelt out the marker")


@pytest.mark.parametrize("format", [HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3])
def test_marker_that_is_no_token_starts_a_call(format: ToolFormat) -> None:
    text = family_text("chatml")
    grammar = build_tool_grammar(format, [TOOLS[0]], lambda text: [(text, None)], ToolCallRules())
    for seed in range(10):
        matcher = compiler_of("chatml").create_matcher(grammar, text.stop_ids)
        opening = "Well, " + format.marker
        for id in text.encode_untrusted(opening):
            matcher.accept(id)
        rest = draw_text(text, matcher, seed)
        assert rest is not None
        before, calls = parse(format, opening + rest)
        assert before.strip() == "Well,"
        assert len(calls) >= 1
        assert check_schemas(calls)


@pytest.mark.parametrize("name", ["demo", "llama3", "mistral_v3"])
def test_output_is_a_call_or_follows_the_text_schema(name: str) -> None:
    template = family_template(name)
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1}
    text_grammar = Grammar("json_schema", json.dumps(schema))
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules(text_grammar=text_grammar))
    assert grammar is not None
    kinds: set[str] = set()
    for seed in range(40):
        text, calls = parse(template.tool_format, draw_output(name, grammar, seed))
        if calls:
            assert check_schemas(calls)
        else:
            jsonschema.validate(json.loads(text), schema)
        kinds.add("call" if calls else "text")
    assert kinds == {"call", "text"}


@pytest.mark.parametrize("schema", ["{}", "true", '{"properties": {"a": {"type": "null"}}}'])
def test_arguments_are_an_object_even_under_an_open_schema(schema: str) -> None:
    grammar = family_template("qwen3").build_tool_grammar(
        [CallableTool("f", schema)], ToolCallRules(is_required=True, allows_parallel=False)
    )
    assert grammar is not None
    for seed in range(10):
        tools = [CallableTool("f", schema)]
        _, [(_, arguments)] = parse(HERMES, draw_output("qwen3", grammar, seed), tools)
        assert isinstance(arguments, dict)


def test_unknown_syntax_of_calls_has_no_tool_grammar() -> None:
    assert (
        family_template("odd_calls").build_tool_grammar(TOOLS, ToolCallRules(is_required=True))
        is None
    )


HEADER = "<|channel|>commentary to=functions."
ENDED = "<|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("rules", "output", "is_allowed"),
    [
        (ToolCallRules(), f'{HEADER}get_weather {ENDED}{{"city": "Rome"}}', True),
        (ToolCallRules(), f'{HEADER}get_weather {ENDED}{{"city": "Bonn"}}', False),
        (ToolCallRules(), f"{HEADER}sing {ENDED}{{}}", False),
        (ToolCallRules(), "<|channel|>final<|message|>Hello.", True),
        (ToolCallRules(is_required=True), "<|channel|>final<|message|>Hello.", False),
        (
            ToolCallRules(is_required=True),
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            f'{HEADER}get_weather {ENDED}{{"city": "Rome"}}',
            True,
        ),
    ],
)
def test_harmony_calls_are_messages_with_headers(
    rules: ToolCallRules, output: str, is_allowed: bool
) -> None:
    template, text = family_template("gpt_oss"), family_text("gpt_oss")
    calls = template.build_tool_grammar([TOOLS[0]], rules)
    grammar = template.build_reasoning_grammar(calls, is_open=False, tokens_max=None)
    assert grammar is not None
    assert accepts("gpt_oss", grammar, text.encode(output)) == is_allowed


@pytest.mark.parametrize(
    ("name", "output", "is_allowed"),
    [
        ("glm4_0414", 'get_weather\n{"city": "Rome"}', True),
        ("glm4_0414", 'get_weather\n{"city": "Bonn"}', False),
        ("glm4_0414", "get_weather\nknows.", False),
        ("glm4_0414", "get_weather knows.", True),
        ("glm4_0414", "\nIt is warm.", True),
        ("llama4_pythonic", '[get_weather(city="Rome", days=3)]', True),
        ("llama4_pythonic", '[get_weather(city="Bonn", days=3)]', False),
        ("llama4_pythonic", '<|python_start|>[get_weather(city="Rome")]', True),
        ("llama4_pythonic", "<|python_start|>[sing()]", False),
        ("llama4_pythonic", "It is [warm].", True),
    ],
)
def test_bare_calls_follow_their_schemas_and_text_is_free(
    name: str, output: str, is_allowed: bool
) -> None:
    grammar = family_template(name).build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert accepts(name, grammar, family_text(name).encode(output)) == is_allowed

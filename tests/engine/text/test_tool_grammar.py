"""Answers that may or must call tools, in every family's form: what is drawn is read as calls."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

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
from continuo.engine.wire.messages import Grammar
from tests.engine.text.test_grammar import drawn, grammars
from tests.support.checkpoints import family, template_of

CALLING = ["demo", "qwen2_5", "qwen3", "llama3", "mistral_v3", "mistral_small", "mistral_args"]
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
Call = tuple[str, Any]


def said(name: str, grammar: Grammar, seed: int) -> str:
    text = family(name)
    found = drawn(text, grammars(name).create_matcher(grammar, text.stop_ids), seed)
    assert found is not None
    return found


def parse(
    format: ToolFormat | None, said: str, tools: Sequence[CallableTool] = TOOLS
) -> tuple[str, list[Call]]:
    """The text beside the calls, and the calls; each of them is whole."""
    parser = ToolParser(format, [tool.name for tool in tools])
    text, found = "", list[list[str]]()
    for event in [*parser.push(said), *parser.finish()]:
        match event:
            case ParsedText(text=piece):
                text += piece
            case ParsedCallStarted(name=name):
                found.append([name, ""])
            case ParsedArguments(text=piece):
                found[-1][1] += piece
            case ParsedCallEnded(is_complete=complete):
                assert complete, said
    return text, [(name, json.loads(arguments)) for name, arguments in found]


def follow_their_schemas(found: list[Call]) -> bool:
    for name, arguments in found:
        assert name in [tool.name for tool in TOOLS]
        jsonschema.validate(arguments, SCHEMA if name == "get_weather" else {"type": "object"})
    return True


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("several", [True, False])
def test_must_call(name: str, several: bool) -> None:
    template = template_of(name)
    tools = TOOLS if name != "mistral_args" else [TOOLS[0], TOOLS[2]]  # names stand bare there
    grammar = template.build_tool_grammar(
        tools, ToolCallRules(is_required=True, allows_parallel=several)
    )
    assert grammar is not None
    counts: set[int] = set()
    for seed in range(300):
        text, found = parse(template.tool_format, said(name, grammar, seed))
        assert text.strip() == ""
        assert follow_their_schemas(found)
        counts.add(len(found))
        if seed >= 20 and (not several or max(counts) > 1):
            break
    assert min(counts) == 1
    assert (max(counts) > 1) == several


@pytest.mark.parametrize("name", CALLING)
def test_may_call(name: str) -> None:
    """Free text, and behind the marker nothing but a call: the marker is given here, since chance
    would hardly draw it."""
    template, text = template_of(name), family(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert template.tool_format is not None
    made = 0
    for seed in range(12):
        matcher = grammars(name).create_matcher(grammar, text.stop_ids)
        opening = "Let me see." if not template.tool_format.allows_bare else ""
        marker = "{" if template.tool_format.allows_bare else template.tool_format.marker
        for id in [*text.encode_untrusted(opening), *text.encode(marker)]:
            mask = matcher.compute_bitmask()
            if not mask[id >> 3] >> (id & 7) & 1:
                continue  # a space that SentencePiece puts before the marker
            matcher.accept(id)
        rest = drawn(text, matcher, seed)
        assert rest is not None
        _, found = parse(template.tool_format, opening + marker + rest)
        assert follow_their_schemas(found)
        made += len(found)
    assert made >= 12


@pytest.mark.parametrize("name", CALLING)
def test_text_stays_free(name: str) -> None:
    template, text = template_of(name), family(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    source = random.Random(1)
    for _ in range(5):
        matcher = grammars(name).create_matcher(grammar, text.stop_ids)
        for id in text.encode_untrusted("Hello, {world}: 3 < 4. ") * source.randint(1, 3):
            mask = matcher.compute_bitmask()
            assert mask[id >> 3] >> (id & 7) & 1
            assert all(mask[id >> 3] >> (id & 7) & 1 for id in text.stop_ids), "it may end anywhere"
            matcher.accept(id)


@pytest.mark.parametrize("name", CALLING)
def test_text_cannot_spell_the_marker(name: str) -> None:
    """It would be read as a call that follows no schema."""
    template, text = template_of(name), family(name)
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules())
    assert grammar is not None
    assert template.tool_format is not None
    marker = template.tool_format.marker
    plain = text._tokenizer.encode_untrusted  # pyright: ignore[reportPrivateUsage]
    spelt = [id for letter in "So, " + marker for id in plain(letter, is_continuation=True)]
    matcher = grammars(name).create_matcher(grammar, text.stop_ids)
    for place, id in enumerate(spelt):
        mask = matcher.compute_bitmask()
        if not mask[id >> 3] >> (id & 7) & 1:
            assert place >= len(spelt) - 2, "all but its end is text like any other"
            return
        matcher.accept(id)
    raise AssertionError("it was spelt")


@pytest.mark.parametrize("format", [HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3])
def test_a_marker_that_is_no_token_is_found_in_the_text(format: ToolFormat) -> None:
    text = family("chatml")
    grammar = build_tool_grammar(format, [TOOLS[0]], lambda spelling: None, ToolCallRules())
    for seed in range(10):
        matcher = grammars("chatml").create_matcher(grammar, text.stop_ids)
        opening = "Well, " + format.marker
        for id in text.encode_untrusted(opening):
            matcher.accept(id)
        rest = drawn(text, matcher, seed)
        assert rest is not None
        begun, found = parse(format, opening + rest)
        assert begun.strip() == "Well,"
        assert len(found) >= 1
        assert follow_their_schemas(found)


@pytest.mark.parametrize("name", ["demo", "llama3", "mistral_v3"])
def test_an_answer_is_a_call_or_follows_a_schema(name: str) -> None:
    template = template_of(name)
    wanted = {"type": "array", "items": {"type": "boolean"}, "minItems": 1}
    answer = Grammar("json_schema", json.dumps(wanted))
    grammar = template.build_tool_grammar([TOOLS[0]], ToolCallRules(text_grammar=answer))
    assert grammar is not None
    kinds: set[str] = set()
    for seed in range(40):
        text, found = parse(template.tool_format, said(name, grammar, seed))
        if found:
            assert follow_their_schemas(found)
        else:
            jsonschema.validate(json.loads(text), wanted)
        kinds.add("call" if found else "answer")
    assert kinds == {"call", "answer"}


@pytest.mark.parametrize("schema", ["{}", "true", '{"properties": {"a": {"type": "null"}}}'])
def test_arguments_are_an_object_whatever_their_schema_leaves_open(schema: str) -> None:
    grammar = template_of("qwen3").build_tool_grammar(
        [CallableTool("f", schema)], ToolCallRules(is_required=True, allows_parallel=False)
    )
    assert grammar is not None
    for seed in range(10):
        tools = [CallableTool("f", schema)]
        _, [(_, arguments)] = parse(HERMES, said("qwen3", grammar, seed), tools)
        assert isinstance(arguments, dict)


def test_a_template_that_shows_no_calls_has_no_grammar_for_them() -> None:
    assert template_of("chatml").build_tool_grammar(TOOLS, ToolCallRules(is_required=True)) is None

"""Calls in a model's text become items, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import Grammar, Sampling, ToolParser
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.output_grammar import build_grammar, check_enforceable
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    OutputParser,
    ParsedChunk,
    PlainTextParser,
    TextChunk,
)
from continuo.realtime.generation.tool_calls import ToolCallParser, make_output_parser
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice
from tests.support.checkpoints import template_of

ANSWER = 'Let me see. <tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}\n</tool_call>'
TOOLS = (Tool(name="look"),)


def joined(chunks: list[ParsedChunk]) -> list[ParsedChunk]:
    """Texts of a kind in a row as one."""
    result: list[ParsedChunk] = []
    for chunk in chunks:
        match (result[-1] if result else None), chunk:
            case TextChunk(text=before), TextChunk(text=text):
                result[-1] = TextChunk(before + text)
            case CallArgumentsChunk(text=before), CallArgumentsChunk(text=text):
                result[-1] = CallArgumentsChunk(before + text)
            case _:
                result.append(chunk)
    return result


def read(reader: OutputParser, text: str, cuts: list[int]) -> list[ParsedChunk]:
    edges = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    chunks: list[ParsedChunk] = []
    for start, end in itertools.pairwise(edges):
        chunks += reader.push(text[start:end])
    return joined([*chunks, *reader.finish()])


@given(st.lists(st.integers(0, 200)))
def test_a_call_is_found_however_the_text_is_cut(cuts: list[int]) -> None:
    reader = make_output_parser(GenerationSettings(tools=TOOLS), template_of("qwen2_5"))
    assert isinstance(reader, ToolCallParser)
    assert read(reader, ANSWER, cuts) == [
        TextChunk("Let me see."),
        CallStartChunk("look"),
        CallArgumentsChunk('{"at": "Rome"}'),
        CallEndChunk(),
    ]


def test_a_call_that_is_cut_off() -> None:
    reader = make_output_parser(GenerationSettings(tools=TOOLS), template_of("qwen2_5"))
    assert read(reader, ANSWER[:60], [])[-1] == CallEndChunk(is_complete=False)


@pytest.mark.parametrize(
    "settings",
    [GenerationSettings(), GenerationSettings(tools=TOOLS, tool_choice=ToolChoice("none"))],
)
def test_without_tools_all_is_text(settings: GenerationSettings) -> None:
    reader = make_output_parser(settings, template_of("qwen2_5"))
    assert isinstance(reader, PlainTextParser)
    assert read(reader, ANSWER, []) == [TextChunk(ANSWER)]


def test_a_model_that_has_no_way_to_call_only_talks() -> None:
    reader = make_output_parser(GenerationSettings(tools=TOOLS), template_of("chatml"))
    assert read(reader, ANSWER, [3, 20]) == [TextChunk(ANSWER)]
    assert read(ToolCallParser(ToolParser(None)), "x", []) == [TextChunk("x")]


# ---------------------------------------------------------------- what is enforced

STRICT = Tool(name="look", parameters='{"type": "object", "not": {}}', strict=True)
LOOSE = Tool(name="look", parameters='{"type": "object", "not": {}}')
PAIR = (Tool(name="look", parameters='{"type": "object"}'), Tool(name="listen"))
SCHEMA = Grammar("json_schema", '{"type": "array"}')
QWEN = template_of("qwen2_5")


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(),
        GenerationSettings(tools=PAIR),
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("none"), parallel_tool_calls=False),
        GenerationSettings(tool_choice=ToolChoice("required")),
    ],
)
def test_what_may_say_anything_has_no_grammar(settings: GenerationSettings) -> None:
    assert build_grammar(settings, QWEN) is None


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("required")),
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "listen")),
        GenerationSettings(tools=PAIR, parallel_tool_calls=False),
        GenerationSettings(
            tools=(Tool(name="look", parameters='{"type": "object"}', strict=True),)
        ),
        GenerationSettings(tools=PAIR, sampling=Sampling(grammar=SCHEMA)),
        GenerationSettings(tools=(LOOSE,), tool_choice=ToolChoice("required")),
    ],
)
def test_what_is_forced_or_strict_has_one(settings: GenerationSettings) -> None:
    grammar = build_grammar(settings, QWEN)
    assert grammar is not None
    assert "look" in grammar.source or settings.tool_choice.name == "listen"


def test_a_named_tool_is_the_only_one() -> None:
    grammar = build_grammar(
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "listen")), QWEN
    )
    assert grammar is not None
    assert "listen" in grammar.source
    assert "look" not in grammar.source


def test_an_answer_without_calls_follows_its_own_schema() -> None:
    sampling = Sampling(grammar=SCHEMA)
    assert build_grammar(GenerationSettings(sampling=sampling), QWEN) is SCHEMA
    none = GenerationSettings(tools=PAIR, tool_choice=ToolChoice("none"), sampling=sampling)
    assert build_grammar(none, QWEN) is SCHEMA


@pytest.mark.parametrize(
    ("settings", "template", "param"),
    [
        (GenerationSettings(tools=(STRICT,)), "qwen2_5", "session.tools"),
        (
            GenerationSettings(tools=PAIR, tool_choice=ToolChoice("required")),
            "chatml",
            "session.tool_choice",
        ),
        (
            GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            GenerationSettings(tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            GenerationSettings(sampling=Sampling(grammar=Grammar("json_schema", '{"not": {}}'))),
            "qwen2_5",
            "session.text.format.schema",
        ),
        (
            GenerationSettings(sampling=Sampling(grammar=SCHEMA, ignore_eos=True)),
            "qwen2_5",
            "session.ignore_eos",
        ),
        (
            GenerationSettings(
                tools=PAIR,
                tool_choice=ToolChoice("required"),
                sampling=Sampling(ignore_eos=True),
            ),
            "qwen2_5",
            "session.ignore_eos",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused(
    settings: GenerationSettings, template: str, param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        await check_enforceable(settings, template_of(template), "session.")
    assert caught.value.param == param
    with pytest.raises(Refusal):
        build_grammar(settings, template_of(template))

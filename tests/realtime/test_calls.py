"""Calls in a model's text become items, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import Grammar, Sampling, ToolParser
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.output_grammar import grammar_of, vet
from continuo.realtime.generation.output_parser import (
    CallArguments,
    CallBegun,
    CallEnded,
    Chunk,
    PlainReader,
    Reader,
    Said,
)
from continuo.realtime.generation.tool_calls import CallReader, reader_for
from continuo.realtime.protocol.settings import Settings, Tool, ToolChoice
from tests.engine.text.text_fixtures import template_of

ANSWER = 'Let me see. <tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}\n</tool_call>'
TOOLS = (Tool(name="look"),)


def joined(chunks: list[Chunk]) -> list[Chunk]:
    """Texts of a kind in a row as one."""
    result: list[Chunk] = []
    for chunk in chunks:
        match (result[-1] if result else None), chunk:
            case Said(text=before), Said(text=text):
                result[-1] = Said(before + text)
            case CallArguments(text=before), CallArguments(text=text):
                result[-1] = CallArguments(before + text)
            case _:
                result.append(chunk)
    return result


def read(reader: Reader, text: str, cuts: list[int]) -> list[Chunk]:
    edges = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    chunks: list[Chunk] = []
    for start, end in itertools.pairwise(edges):
        chunks += reader.push(text[start:end])
    return joined([*chunks, *reader.end()])


@given(st.lists(st.integers(0, 200)))
def test_a_call_is_found_however_the_text_is_cut(cuts: list[int]) -> None:
    reader = reader_for(Settings(tools=TOOLS), template_of("qwen2_5"))
    assert isinstance(reader, CallReader)
    assert read(reader, ANSWER, cuts) == [
        Said("Let me see."),
        CallBegun("look"),
        CallArguments('{"at": "Rome"}'),
        CallEnded(),
    ]


def test_a_call_that_is_cut_off() -> None:
    reader = reader_for(Settings(tools=TOOLS), template_of("qwen2_5"))
    assert read(reader, ANSWER[:60], [])[-1] == CallEnded(complete=False)


@pytest.mark.parametrize(
    "settings", [Settings(), Settings(tools=TOOLS, tool_choice=ToolChoice("none"))]
)
def test_without_tools_all_is_text(settings: Settings) -> None:
    reader = reader_for(settings, template_of("qwen2_5"))
    assert isinstance(reader, PlainReader)
    assert read(reader, ANSWER, []) == [Said(ANSWER)]


def test_a_model_that_has_no_way_to_call_only_talks() -> None:
    reader = reader_for(Settings(tools=TOOLS), template_of("chatml"))
    assert read(reader, ANSWER, [3, 20]) == [Said(ANSWER)]
    assert read(CallReader(ToolParser(None)), "x", []) == [Said("x")]


# ---------------------------------------------------------------- what is enforced

STRICT = Tool(name="look", parameters='{"type": "object", "not": {}}', strict=True)
LOOSE = Tool(name="look", parameters='{"type": "object", "not": {}}')
PAIR = (Tool(name="look", parameters='{"type": "object"}'), Tool(name="listen"))
SCHEMA = Grammar("json_schema", '{"type": "array"}')
QWEN = template_of("qwen2_5")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(tools=PAIR),
        Settings(tools=PAIR, tool_choice=ToolChoice("none"), parallel_tool_calls=False),
        Settings(tool_choice=ToolChoice("required")),
    ],
)
def test_what_may_say_anything_has_no_grammar(settings: Settings) -> None:
    assert grammar_of(settings, QWEN) is None


@pytest.mark.parametrize(
    "settings",
    [
        Settings(tools=PAIR, tool_choice=ToolChoice("required")),
        Settings(tools=PAIR, tool_choice=ToolChoice("function", "listen")),
        Settings(tools=PAIR, parallel_tool_calls=False),
        Settings(tools=(Tool(name="look", parameters='{"type": "object"}', strict=True),)),
        Settings(tools=PAIR, sampling=Sampling(grammar=SCHEMA)),
        Settings(tools=(LOOSE,), tool_choice=ToolChoice("required")),
    ],
)
def test_what_is_forced_or_strict_has_one(settings: Settings) -> None:
    grammar = grammar_of(settings, QWEN)
    assert grammar is not None
    assert "look" in grammar.source or settings.tool_choice.name == "listen"


def test_a_named_tool_is_the_only_one() -> None:
    grammar = grammar_of(Settings(tools=PAIR, tool_choice=ToolChoice("function", "listen")), QWEN)
    assert grammar is not None
    assert "listen" in grammar.source
    assert "look" not in grammar.source


def test_an_answer_without_calls_follows_its_own_schema() -> None:
    sampling = Sampling(grammar=SCHEMA)
    assert grammar_of(Settings(sampling=sampling), QWEN) is SCHEMA
    none = Settings(tools=PAIR, tool_choice=ToolChoice("none"), sampling=sampling)
    assert grammar_of(none, QWEN) is SCHEMA


@pytest.mark.parametrize(
    ("settings", "template", "param"),
    [
        (Settings(tools=(STRICT,)), "qwen2_5", "session.tools"),
        (Settings(tools=PAIR, tool_choice=ToolChoice("required")), "chatml", "session.tool_choice"),
        (
            Settings(tools=PAIR, tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            Settings(tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            Settings(sampling=Sampling(grammar=Grammar("json_schema", '{"not": {}}'))),
            "qwen2_5",
            "session.text.format.schema",
        ),
        (
            Settings(sampling=Sampling(grammar=SCHEMA, ignore_eos=True)),
            "qwen2_5",
            "session.ignore_eos",
        ),
        (
            Settings(
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
    settings: Settings, template: str, param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        await vet(settings, template_of(template), "session.")
    assert caught.value.param == param
    with pytest.raises(Refusal):
        grammar_of(settings, template_of(template))

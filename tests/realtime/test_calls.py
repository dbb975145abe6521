"""Calls in a model's text become items, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ToolParser
from realtime.protocol.core import Settings, Tool, ToolChoice
from realtime.session.calls import CallReader, reader_for
from realtime.session.output import (
    CallArguments,
    CallBegun,
    CallEnded,
    Chunk,
    PlainReader,
    Reader,
    Said,
)
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

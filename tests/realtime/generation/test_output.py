"""Output items: text and calls of a model become items that start, grow and end in order."""

import itertools
from collections.abc import Iterable

import pytest

from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    ParsedChunk,
    PlainTextParser,
    TextChunk,
)
from continuo.realtime.protocol.events import ConversationEvent, OutputItemEnded, OutputItemStarted
from continuo.realtime.protocol.items import ContentPart, FunctionCallItem, Item, MessageItem
from continuo.realtime.protocol.realtime_api import Encoder, encode_frame
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings


class PreviousItem:
    """Find the previous item: `u1`, or the output item before the last."""

    def __init__(self) -> None:
        self.items: tuple[Item, ...] = ()

    def __call__(self, items: tuple[Item, ...]) -> str | None:
        self.items = items
        return items[-2].id if len(items) > 1 else "u1"


def make_output_items(previous_item: PreviousItem) -> OutputItems:
    names = itertools.count(1)
    response = Response(id="resp_1", conversation="conv_1", settings=GenerationSettings())
    return OutputItems(response, previous_item, lambda prefix: f"{prefix}_{next(names)}")


def wire_types(events: Iterable[ConversationEvent]) -> list[str]:
    encoder = Encoder("sess_1", "demo")
    frames = [frame for event in events for frame in encoder.encode(event, str)]
    assert all(encode_frame(frame) for frame in frames)
    return [str(type(frame).__struct_config__.tag) for frame in frames]


def parse_to_items(
    chunks: list[ParsedChunk], *, is_complete: bool = True
) -> tuple[list[ConversationEvent], OutputItems]:
    output = make_output_items(PreviousItem())
    events = list(output.append(chunks))
    events += output.finish("completed", needs_item=is_complete)
    return events, output


def test_text_becomes_a_message_item() -> None:
    events, output = parse_to_items([TextChunk("Hel"), TextChunk("lo")])
    assert wire_types(events) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
    ]
    (item,) = output.items
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", "Hello"),)
    assert item.status == "completed"


def test_call_chunks_become_a_function_call_item() -> None:
    events, output = parse_to_items(
        [
            CallStartChunk("look"),
            CallArgumentsChunk('{"a"'),
            CallArgumentsChunk(": 1}"),
            CallEndChunk(),
        ]
    )
    assert wire_types(events) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
    ]
    (item,) = output.items
    assert isinstance(item, FunctionCallItem)
    assert (item.name, item.arguments, item.status) == ("look", '{"a": 1}', "completed")
    assert item.call_id.startswith("call_")


def test_message_and_calls_start_and_end_in_order() -> None:
    chunks = [
        TextChunk("Let me look."),
        *(CallStartChunk("look"), CallArgumentsChunk("{}"), CallEndChunk()),
        *(CallStartChunk("find"), CallArgumentsChunk("{}"), CallEndChunk()),
    ]
    events, output = parse_to_items(chunks)
    started = [event for event in events if isinstance(event, OutputItemStarted)]
    ended = [event for event in events if isinstance(event, OutputItemEnded)]
    first, second, third = output.items
    assert [event.index for event in started] == [event.index for event in ended] == [0, 1, 2]
    previous_ids = ["u1", first.id, second.id]
    assert [event.previous for event in started] == previous_ids
    assert [event.previous for event in ended] == previous_ids
    assert isinstance(third, FunctionCallItem)
    assert third.name == "find"
    order = [event for event in events if isinstance(event, OutputItemStarted | OutputItemEnded)]
    assert [event.item.id for event in order] == [
        id for item in output.items for id in (item.id, item.id)
    ], "an item ends before the next one starts"


@pytest.mark.parametrize("complete", [True, False])
def test_call_cut_off_is_incomplete(complete: bool) -> None:
    _, output = parse_to_items(
        [CallStartChunk("look"), CallArgumentsChunk("{"), CallEndChunk(complete)]
    )
    assert output.items[0].status == ("completed" if complete else "incomplete")


def test_no_text_is_an_empty_message_only_if_the_response_is_complete() -> None:
    events, output = parse_to_items([])
    assert "response.output_text.delta" not in wire_types(events)
    (item,) = output.items
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", ""),)
    assert parse_to_items([], is_complete=False)[0] == []


def test_conversation_receives_items_while_they_grow() -> None:
    previous_item = PreviousItem()
    output = make_output_items(previous_item)
    for chunk in (TextChunk("a"), TextChunk("b")):
        list(output.append([chunk]))
    assert [item.status for item in previous_item.items] == ["in_progress"]
    list(output.finish("incomplete", needs_item=True))
    assert [item.status for item in previous_item.items] == ["incomplete"]


def test_plain_text_parser_finds_no_calls() -> None:
    parser = PlainTextParser()
    assert list(parser.push('<tool_call>{"name": "look"}')) == [
        TextChunk('<tool_call>{"name": "look"}')
    ]
    assert list(parser.push("")) == []
    assert list(parser.finish()) == []

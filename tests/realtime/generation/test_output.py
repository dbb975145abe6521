"""What a model says as items: messages and calls, begun, grown and ended in order."""

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


class Place:
    """Knows which item stands before: `u1`, or the item of the answer before the last."""

    def __init__(self) -> None:
        self.items: tuple[Item, ...] = ()

    def __call__(self, items: tuple[Item, ...]) -> str | None:
        self.items = items
        return items[-2].id if len(items) > 1 else "u1"


def output(place: Place) -> OutputItems:
    names = itertools.count(1)
    answer = Response(id="resp_1", conversation="conv_1", settings=GenerationSettings())
    return OutputItems(answer, place, lambda prefix: f"{prefix}_{next(names)}")


def wire(tells: Iterable[ConversationEvent]) -> list[str]:
    voice = Encoder("sess_1", "demo")
    events = [event for tell in tells for event in voice.encode(tell, str)]
    assert all(encode_frame(event) for event in events)
    return [str(type(event).__struct_config__.tag) for event in events]


def run(
    chunks: list[ParsedChunk], *, whole: bool = True
) -> tuple[list[ConversationEvent], OutputItems]:
    made = output(Place())
    tells = list(made.append(chunks))
    tells += made.finish("completed", needs_item=whole)
    return tells, made


def test_a_message() -> None:
    tells, made = run([TextChunk("Hel"), TextChunk("lo")])
    assert wire(tells) == [
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
    (item,) = made.items
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", "Hello"),)
    assert item.status == "completed"


def test_a_call() -> None:
    tells, made = run(
        [
            CallStartChunk("look"),
            CallArgumentsChunk('{"a"'),
            CallArgumentsChunk(": 1}"),
            CallEndChunk(),
        ]
    )
    assert wire(tells) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
    ]
    (item,) = made.items
    assert isinstance(item, FunctionCallItem)
    assert (item.name, item.arguments, item.status) == ("look", '{"a": 1}', "completed")
    assert item.call_id.startswith("call_")


def test_a_message_and_two_calls_follow_each_other() -> None:
    chunks = [
        TextChunk("Let me look."),
        *(CallStartChunk("look"), CallArgumentsChunk("{}"), CallEndChunk()),
        *(CallStartChunk("find"), CallArgumentsChunk("{}"), CallEndChunk()),
    ]
    tells, made = run(chunks)
    started = [tell for tell in tells if isinstance(tell, OutputItemStarted)]
    ended = [tell for tell in tells if isinstance(tell, OutputItemEnded)]
    first, second, third = made.items
    assert [tell.index for tell in started] == [tell.index for tell in ended] == [0, 1, 2]
    before = ["u1", first.id, second.id]
    assert [tell.previous for tell in started] == before
    assert [tell.previous for tell in ended] == before
    assert isinstance(third, FunctionCallItem)
    assert third.name == "find"
    order = [tell for tell in tells if isinstance(tell, OutputItemStarted | OutputItemEnded)]
    assert [tell.item.id for tell in order] == [
        id for item in made.items for id in (item.id, item.id)
    ], "one ends before the next begins"


@pytest.mark.parametrize("complete", [True, False])
def test_a_call_that_was_cut_off_is_incomplete(complete: bool) -> None:
    _, made = run([CallStartChunk("look"), CallArgumentsChunk("{"), CallEndChunk(complete)])
    assert made.items[0].status == ("completed" if complete else "incomplete")


def test_nothing_said_is_an_empty_message_only_if_the_answer_is_whole() -> None:
    tells, made = run([])
    assert "response.output_text.delta" not in wire(tells)
    (item,) = made.items
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", ""),)
    assert run([], whole=False)[0] == []


def test_the_conversation_knows_the_items_as_they_grow() -> None:
    place = Place()
    made = output(place)
    for chunk in (TextChunk("a"), TextChunk("b")):
        list(made.append([chunk]))
    assert [item.status for item in place.items] == ["in_progress"]
    list(made.finish("incomplete", needs_item=True))
    assert [item.status for item in place.items] == ["incomplete"]


def test_plain_text_is_never_a_call() -> None:
    reader = PlainTextParser()
    assert list(reader.push('<tool_call>{"name": "look"}')) == [
        TextChunk('<tool_call>{"name": "look"}')
    ]
    assert list(reader.push("")) == []
    assert list(reader.finish()) == []

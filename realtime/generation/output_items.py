"""Output items: the messages, function calls and reasoning of a response, built from the chunks of
its output as they arrive. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

import msgspec

from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    ParsedChunk,
    ReasoningChunk,
    TextChunk,
)
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ConversationEvent,
    OutputItemEnded,
    OutputItemStarted,
    ReasoningDelta,
    TextDelta,
)
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    Item,
    ItemStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from continuo.realtime.protocol.response import Response

PlaceItems = Callable[[tuple[Item, ...]], str | None]
"""Callback of a response that puts the items it has so far into the conversation. Returns the id of
the conversation's item before the last of them. Returns None if there is none, or if the response
does not belong to a conversation."""


class OutputItems:
    """The items of one response. Each method returns the events that report its change."""

    def __init__(
        self, response: Response, place_items: PlaceItems, new_id: Callable[[str], str]
    ) -> None:
        self._response = response
        self._place_items = place_items
        self._new_id = new_id
        self._finished: list[OutputItem] = []
        self._index = 0
        """Index of the current item. Reasoning is not counted, as not every protocol shows it."""
        self._current: OutputItem | None = None
        self._text: list[str] = []

    @property
    def items(self) -> tuple[OutputItem, ...]:
        return (*self._finished, *([self._current] if self._current else []))

    def append(self, chunks: Sequence[ParsedChunk]) -> list[ConversationEvent]:
        events: list[ConversationEvent] = []
        for chunk in chunks:
            match chunk:
                case TextChunk(text=text):
                    if not isinstance(self._current, MessageItem):
                        events += self._start_message()
                    if text:
                        events.append(self._append_text(text))
                case ReasoningChunk(text=text):
                    if not isinstance(self._current, ReasoningItem):
                        events += self._end_item("completed")
                        item = ReasoningItem(id=self._new_id("item"), text="", status="in_progress")
                        events += self._start_item(item)
                    events.append(self._append_text(text))
                case CallStartChunk(name=name):
                    events += self._end_item("completed")
                    events += self._start_item(
                        FunctionCallItem(
                            id=self._new_id("item"),
                            call_id=self._new_id("call"),
                            name=name,
                            arguments="",
                            status="in_progress",
                        )
                    )
                case CallArgumentsChunk(text=text):
                    if text:
                        events.append(self._append_text(text))
                case CallEndChunk(is_complete=complete):
                    events += self._end_item("completed" if complete else "incomplete")
                case _:
                    assert_never(chunk)
        return events

    def finish(self, status: ItemStatus, *, needs_item: bool) -> Iterator[ConversationEvent]:
        """End the current item. `needs_item`: if the response has no item, add an empty message
        first."""
        if needs_item and all(isinstance(item, ReasoningItem) for item in self.items):
            yield from self._end_item(status)
            yield from self._start_message()
        yield from self._end_item(status)

    def _start_message(self) -> Iterator[ConversationEvent]:
        yield from self._end_item("completed")
        yield from self._start_item(
            MessageItem(id=self._new_id("item"), role="assistant", parts=(), status="in_progress")
        )

    def _start_item(self, item: OutputItem) -> Iterator[ConversationEvent]:
        self._current, self._text = item, []
        yield OutputItemStarted(
            response_id=self._response.id,
            index=self._index,
            item=item,
            previous=self._place_items(self.items),
            is_out_of_band=self._is_out_of_band,
        )

    def _append_text(self, text: str) -> ConversationEvent:
        item = self._current
        assert item is not None, "text without an item"
        self._text.append(text)
        if isinstance(item, MessageItem):
            return TextDelta(self._response.id, self._index, item.id, text)
        if isinstance(item, FunctionCallItem):
            return ArgumentsDelta(self._response.id, self._index, item.id, item.call_id, text)
        return ReasoningDelta(self._response.id, self._index, item.id, text)

    def _end_item(self, status: ItemStatus) -> Iterator[ConversationEvent]:
        item = self._current
        if item is None:
            return
        text = "".join(self._text)
        if isinstance(item, FunctionCallItem):
            item = msgspec.structs.replace(item, arguments=text, status=status)
        elif isinstance(item, ReasoningItem):
            item = msgspec.structs.replace(item, text=text, status=status)
        else:
            parts = (ContentPart("output_text", text),)
            item = msgspec.structs.replace(item, parts=parts, status=status)
        index, self._current = self._index, None
        self._finished.append(item)
        self._index += not isinstance(item, ReasoningItem)
        yield OutputItemEnded(
            response_id=self._response.id,
            index=index,
            item=item,
            previous=self._place_items(self.items),
            is_out_of_band=self._is_out_of_band,
        )

    @property
    def _is_out_of_band(self) -> bool:
        return self._response.conversation is None

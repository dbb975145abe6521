"""What a model says, cut into items: messages and calls. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

import msgspec

from continuo.realtime.generation.output_parser import (
    CallArguments,
    CallBegun,
    CallEnded,
    Chunk,
    Said,
)
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    OutputEnded,
    OutputStarted,
    Tell,
    TextDelta,
)
from continuo.realtime.protocol.items import CallItem, Item, ItemStatus, MessageItem, Part
from continuo.realtime.protocol.response import Answer

Place = Callable[[tuple[Item, ...]], str | None]
"""The answer has these items now; says which item stands before the last of them."""


class Output:
    """The items of one answer as they grow; gives what there is to tell."""

    def __init__(self, answer: Answer, place: Place, fresh: Callable[[str], str]) -> None:
        self._answer = answer
        self._place = place
        self._fresh = fresh
        self._done: list[MessageItem | CallItem] = []
        self._now: MessageItem | CallItem | None = None
        self._text: list[str] = []

    @property
    def items(self) -> tuple[MessageItem | CallItem, ...]:
        return (*self._done, *([self._now] if self._now else []))

    def take(self, chunks: Sequence[Chunk]) -> list[Tell]:
        tells: list[Tell] = []
        for chunk in chunks:
            match chunk:
                case Said(text=text):
                    if not isinstance(self._now, MessageItem):
                        tells += self._begin_message()
                    if text:
                        tells.append(self._grow(text))
                case CallBegun(name=name):
                    tells += self._end("completed")
                    tells += self._begin(
                        CallItem(
                            id=self._fresh("item"),
                            call_id=self._fresh("call"),
                            name=name,
                            arguments="",
                            status="in_progress",
                        )
                    )
                case CallArguments(text=text):
                    if text:
                        tells.append(self._grow(text))
                case CallEnded(complete=complete):
                    tells += self._end("completed" if complete else "incomplete")
                case _:
                    assert_never(chunk)
        return tells

    def finish(self, status: ItemStatus, *, whole: bool) -> Iterator[Tell]:
        """Ends the last item. A `whole` answer has at least an empty message."""
        if whole and not self.items:
            yield from self._begin_message()
        yield from self._end(status)

    def _begin_message(self) -> Iterator[Tell]:
        yield from self._end("completed")
        yield from self._begin(
            MessageItem(id=self._fresh("item"), role="assistant", parts=(), status="in_progress")
        )

    def _begin(self, item: MessageItem | CallItem) -> Iterator[Tell]:
        self._now, self._text = item, []
        yield OutputStarted(
            answer_id=self._answer.id,
            index=len(self._done),
            item=item,
            previous=self._place(self.items),
            apart=self._apart,
        )

    def _grow(self, text: str) -> Tell:
        item = self._now
        assert item is not None, "text without an item"
        self._text.append(text)
        index = len(self._done)
        if isinstance(item, CallItem):
            return ArgumentsDelta(self._answer.id, index, item.id, item.call_id, text)
        return TextDelta(self._answer.id, index, item.id, text)

    def _end(self, status: ItemStatus) -> Iterator[Tell]:
        item = self._now
        if item is None:
            return
        text = "".join(self._text)
        if isinstance(item, CallItem):
            item = msgspec.structs.replace(item, arguments=text, status=status)
        else:
            parts = (Part("output_text", text),)
            item = msgspec.structs.replace(item, parts=parts, status=status)
        index, self._now = len(self._done), None
        self._done.append(item)
        yield OutputEnded(
            answer_id=self._answer.id,
            index=index,
            item=item,
            previous=self._place(self.items),
            apart=self._apart,
        )

    @property
    def _apart(self) -> bool:
        return self._answer.conversation is None

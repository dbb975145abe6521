"""Where each message's ids begin and end, as the chat template wants it. Pure.

A message's ids are made from what is new alone. Some templates change what they wrote before (they
drop old reasoning, or move the tools to the last question); then the spans from there on get other
ids, and what was sampled for them is gone, because the template wants it said differently.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from continuo.engine import ChatTemplate, Message
from continuo.realtime.conversation.rendering import joins, message_of
from continuo.realtime.protocol.items import Item

Tools = tuple[dict[str, Any], ...]


class Span(msgspec.Struct, frozen=True, eq=False):
    items: tuple[Item, ...] = ()
    ids: tuple[int, ...] = ()
    answer: str | None = None
    """The answer it is, or comes from."""
    sampled: tuple[int, ...] | None = None
    """None: rendered from the items."""
    open: bool = False
    message: Message | None = None
    """What the template was shown for it; None: not laid out yet."""

    @property
    def rendered(self) -> bool:
        return self.sampled is None and not self.open


class Layout:
    """Takes spans one after the other and gives them their ids. `head` stands before them."""

    def __init__(
        self, template: ChatTemplate, system: str | None, tools: Tools, laid: Sequence[Span] = ()
    ) -> None:
        """`laid`: head and spans that have their ids already."""
        self._template = template
        self._tools = tools
        self._lead = 0 if system is None else 1
        """Messages that the head stands for."""
        self._messages: list[Message] = []
        if system is not None:
            self._messages.append(Message(role="system", content=system))
        self._laid = list(laid) or [self._head(system)]
        self._messages += [_message(span) for span in self._laid[1:]]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Head first."""
        return tuple(self._laid)

    @property
    def length(self) -> int:
        return sum(len(span.ids) for span in self._laid)

    @property
    def last(self) -> Span:
        return self._laid[-1]

    def add(self, span: Span) -> None:
        message = _message(span)
        ids: list[int] = []
        if span.sampled is not None:
            ids = [*self.header(), *span.sampled, *self._template.ending(span.sampled)]
        elif not span.open:
            ids = self._extend([message])
        self._laid.append(_with_ids(span, ids, message))
        self._messages.append(message)

    def header(self) -> list[int]:
        """What opens the assistant's turn. It too may change what stands before."""
        return self._extend([], answer=True)

    def _head(self, system: str | None) -> Span:
        if system is None:
            return Span(ids=tuple(self._template.head(None, self._tools)))
        return Span(ids=tuple(self._template.extend([], self._messages, self._tools).ids))

    def _extend(self, new: list[Message], *, answer: bool = False) -> list[int]:
        """The ids of the new message, or of the header; what changes before them is changed."""
        sampled = self._laid[-1].sampled is not None
        found = self._template.extend(
            self._messages, new, self._tools, answer=answer, sampled=sampled
        )
        segments = [*found.segments, found.header] if answer else [*found.segments]
        ids = segments.pop()
        before = self._messages[found.keep :]
        assert len(segments) == len(before), "one segment a message"
        for at, segment in enumerate(segments, found.keep):
            self._revise(at - self._lead + 1, segment)
        if new and not self._messages:
            ids = self._without_head(ids)
        return ids

    def _revise(self, at: int, ids: list[int]) -> None:
        """`at` counts head and spans."""
        if at == 1 and self._lead == 0:
            ids = self._without_head(ids)
        span = self._laid[at]
        if not span.open and span.ids != tuple(ids):
            self._laid[at] = Span(span.items, tuple(ids), span.answer, message=span.message)

    def _without_head(self, ids: list[int]) -> list[int]:
        """Without a system message, the head is the beginning of the first."""
        head = self._laid[0].ids
        if tuple(ids[: len(head)]) == head:
            return ids[len(head) :]
        self._laid[0] = Span()
        return ids


def joined(spans: Sequence[Span]) -> list[Span]:
    """Calls go into the assistant's message before them, as far as both are rendered."""
    result: list[Span] = []
    for span in spans:
        last = result[-1] if result else None
        if last and last.rendered and span.rendered and joins(last.items, span.items[0]):
            result[-1] = Span(last.items + span.items)
        else:
            result.append(span)
    return result


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading elements are the same."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


def _message(span: Span) -> Message:
    if span.message is not None and not span.open:
        return span.message
    return message_of(span.items) if span.items else Message(role="assistant")


def _with_ids(span: Span, ids: list[int], message: Message) -> Span:
    """The same span if nothing changes, so that it can be recognised."""
    if span.ids == tuple(ids) and span.message is not None:
        return span
    return msgspec.structs.replace(span, ids=tuple(ids), message=message)

"""Where each message's ids begin and end, as the chat template wants it. Pure.

A message's ids are made from what is new alone. Some templates change what they wrote before (they
drop old reasoning, or move the tools to the last question); then the spans from there on get other
ids, and what was sampled for them is gone, because the template wants it said differently.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from continuo.engine import ChatMessage, ChatTemplate
from continuo.realtime.conversation.rendering import is_merged_into, render_message
from continuo.realtime.protocol.items import Item

ToolSchemas = tuple[dict[str, Any], ...]


class Span(msgspec.Struct, frozen=True, eq=False):
    items: tuple[Item, ...] = ()
    ids: tuple[int, ...] = ()
    response_id: str | None = None
    """The answer it is, or comes from."""
    sampled_ids: tuple[int, ...] | None = None
    """None: rendered from the items."""
    is_open: bool = False
    message: ChatMessage | None = None
    """What the template was shown for it; None: not laid out yet."""

    @property
    def is_rendered(self) -> bool:
        return self.sampled_ids is None and not self.is_open


class Tokenization:
    """Takes spans one after the other and gives them their ids. `head` stands before them."""

    def __init__(
        self,
        template: ChatTemplate,
        system: str | None,
        tools: ToolSchemas,
        tokenized: Sequence[Span] = (),
    ) -> None:
        """`laid`: head and spans that have their ids already."""
        self._template = template
        self._tools = tools
        self._system_messages = 0 if system is None else 1
        """Messages that the head stands for."""
        self._messages: list[ChatMessage] = []
        if system is not None:
            self._messages.append(ChatMessage(role="system", content=system))
        self._spans = list(tokenized) or [self._tokenize_head(system)]
        self._messages += [_render_span(span) for span in self._spans[1:]]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Head first."""
        return tuple(self._spans)

    @property
    def length(self) -> int:
        return sum(len(span.ids) for span in self._spans)

    @property
    def last(self) -> Span:
        return self._spans[-1]

    def add(self, span: Span) -> None:
        message = _render_span(span)
        ids: list[int] = []
        if span.sampled_ids is not None:
            ids = [
                *self.render_header(),
                *span.sampled_ids,
                *self._template.encode_ending(span.sampled_ids),
            ]
        elif not span.is_open:
            ids = self._extend([message])
        self._spans.append(_with_ids(span, ids, message))
        self._messages.append(message)

    def render_header(self) -> list[int]:
        """What opens the assistant's turn. It too may change what stands before."""
        return self._extend([], with_header=True)

    def _tokenize_head(self, system: str | None) -> Span:
        if system is None:
            return Span(ids=tuple(self._template.encode_head(None, self._tools)))
        return Span(ids=tuple(self._template.extend([], self._messages, self._tools).ids))

    def _extend(self, new: list[ChatMessage], *, with_header: bool = False) -> list[int]:
        """The ids of the new message, or of the header; what changes before them is changed."""
        sampled = self._spans[-1].sampled_ids is not None
        found = self._template.extend(
            self._messages, new, self._tools, with_header=with_header, is_sampled=sampled
        )
        segments = [*found.segments, found.header] if with_header else [*found.segments]
        ids = segments.pop()
        before = self._messages[found.kept_messages :]
        assert len(segments) == len(before), "one segment a message"
        for at, segment in enumerate(segments, found.kept_messages):
            self._revise(at - self._system_messages + 1, segment)
        if new and not self._messages:
            ids = self._without_head(ids)
        return ids

    def _revise(self, at: int, ids: list[int]) -> None:
        """`at` counts head and spans."""
        if at == 1 and self._system_messages == 0:
            ids = self._without_head(ids)
        span = self._spans[at]
        if not span.is_open and span.ids != tuple(ids):
            self._spans[at] = Span(span.items, tuple(ids), span.response_id, message=span.message)

    def _without_head(self, ids: list[int]) -> list[int]:
        """Without a system message, the head is the beginning of the first."""
        head = self._spans[0].ids
        if tuple(ids[: len(head)]) == head:
            return ids[len(head) :]
        self._spans[0] = Span()
        return ids


def merge_tool_calls(spans: Sequence[Span]) -> list[Span]:
    """Calls go into the assistant's message before them, as far as both are rendered."""
    result: list[Span] = []
    for span in spans:
        last = result[-1] if result else None
        if (
            last
            and last.is_rendered
            and span.is_rendered
            and is_merged_into(last.items, span.items[0])
        ):
            result[-1] = Span(last.items + span.items)
        else:
            result.append(span)
    return result


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading elements are the same."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


def _render_span(span: Span) -> ChatMessage:
    if span.message is not None and not span.is_open:
        return span.message
    return render_message(span.items) if span.items else ChatMessage(role="assistant")


def _with_ids(span: Span, ids: list[int], message: ChatMessage) -> Span:
    """The same span if nothing changes, so that it can be recognised."""
    if span.ids == tuple(ids) and span.message is not None:
        return span
    return msgspec.structs.replace(span, ids=tuple(ids), message=message)

"""Resident memory of the conversations of continuation points, where shared parts count once.

    a  ── head ── span ── span                          a response that continues another one has
    b   └── the same three ────── span ── span          the parts of its conversation, and its own

A part is a span, the head with the instructions and tools, an item out of window, or what a
conversation has for itself. A part counts once, as long as a conversation with it is held.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import assert_never

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.settings import Tool

_TOKEN_BYTES = 32
"""A token id: an integer object. The tuples with references to it are measured."""
_PART_BYTES = 256
"""The record of a part."""
_CONVERSATION_BYTES = 512
"""A conversation without its parts: with the values that it has computed once."""

_Part = Conversation | Span | Item


class _Held:
    __slots__ = ("cost_bytes", "count")

    def __init__(self, cost_bytes: int) -> None:
        self.cost_bytes = cost_bytes
        self.count = 0


class ConversationMemory:
    """The parts of all conversations that are held. A conversation may be held several times."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        """By identity of the part."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, conversation: Conversation) -> tuple[int, int]:
        """Hold a conversation. Returns the bytes of the parts that no other one has, and of all its
        parts."""
        new_bytes = all_bytes = 0
        for part in _iter_parts(conversation):
            held = self._held.get(id(part))
            if held is None:
                held = self._held[id(part)] = _Held(_measure(part, conversation))
                new_bytes += held.cost_bytes
            held.count += 1
            all_bytes += held.cost_bytes
        return new_bytes, all_bytes

    def release(self, conversation: Conversation) -> int:
        """Undo one `hold`. Returns the bytes of the parts that no other conversation has."""
        freed_bytes = 0
        for part in _iter_parts(conversation):
            held = self._held[id(part)]
            held.count -= 1
            if not held.count:
                freed_bytes += held.cost_bytes
                del self._held[id(part)]
        return freed_bytes


def _iter_parts(conversation: Conversation) -> Iterator[_Part]:
    yield conversation
    yield conversation.head
    yield from conversation.spans
    yield from conversation.out_of_window


def _measure(part: _Part, conversation: Conversation) -> int:
    """Return the bytes of a part and of all that it alone refers to. What two parts refer to, such
    as an item in a span and in its revision, counts twice."""
    match part:
        case Conversation(spans=spans, out_of_window=out_of_window):
            size = _CONVERSATION_BYTES + sys.getsizeof(spans) + sys.getsizeof(out_of_window)
        case Span():
            size = _measure_span(part)
            if part is conversation.head:
                size += _measure_text(conversation.instructions)
                size += sys.getsizeof(conversation.tools)
                size += sum(map(_measure_tool, conversation.tools))
        case _:
            size = _measure_item(part)
    return size + _PART_BYTES


def _measure_span(span: Span) -> int:
    size = sys.getsizeof(span) + sys.getsizeof(span.items) + sys.getsizeof(span.ids)
    size += _TOKEN_BYTES * len(span.ids)
    if span.sampled_ids is not None:
        size += sys.getsizeof(span.sampled_ids)  # their integers are those of `ids`
    size += sum(map(_measure_item, span.items))
    if (message := span.message) is not None:
        size += sys.getsizeof(message)
        if not _is_text_of(message.content, span.items):
            size += _measure_text(message.content)
        if not _is_text_of(message.reasoning, span.items):
            size += _measure_text(message.reasoning)
        for call in message.tool_calls:
            size += sys.getsizeof(call)
    return size


def _is_text_of(text: str, items: Sequence[Item]) -> bool:
    """Whether `text` is a text of `items`, as the same object."""
    return any(text is own for item in items for own in _texts_of(item))


def _measure_item(item: Item) -> int:
    size = sys.getsizeof(item)
    for text in _texts_of(item):
        size += _measure_text(text)
    if isinstance(item, MessageItem):
        size += sys.getsizeof(item.parts)
        for part in item.parts:
            size += sys.getsizeof(part)
    return size


def _texts_of(item: Item) -> tuple[str, ...]:
    match item:
        case MessageItem(id=id, parts=parts):
            return (id, *[part.text for part in parts])
        case FunctionCallItem():
            return item.id, item.call_id, item.name, item.arguments
        case FunctionCallOutputItem():
            return item.id, item.call_id, item.output
        case ReasoningItem():
            return item.id, item.text
        case _:
            assert_never(item)


def _measure_tool(tool: Tool) -> int:
    texts = tool.name, tool.description or "", tool.parameters
    return sys.getsizeof(tool) + sum(map(_measure_text, texts))


def _measure_text(text: str) -> int:
    """Return the bytes of a text, and of the copy in UTF-8 that it keeps once it was encoded."""
    if text.isascii():
        return sys.getsizeof(text)
    return sys.getsizeof(text) + 4 * len(text)

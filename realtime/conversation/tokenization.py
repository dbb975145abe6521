"""Assignment of token ids to spans, by the chat template. Pure.

The ids of a new message are made from its own text alone. Some templates render earlier messages
differently when others follow (they remove old reasoning, or move the tools to the last user
message). The spans of those earlier messages then get new ids and lose their sampled ids.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from continuo.engine import ChatMessage, ChatTemplate, EffortSetting
from continuo.realtime.conversation.rendering import is_merged_into, render_message
from continuo.realtime.protocol.items import Item

ToolSchemas = tuple[dict[str, Any], ...]
_ids_of = attrgetter("ids")


class Span(msgspec.Struct, frozen=True, eq=False):
    """The token ids of one rendered message, or of one response, with its items."""

    items: tuple[Item, ...] = ()
    ids: tuple[int, ...] = ()
    response_id: str | None = None
    """Id of the response whose output this span holds, or was cut from; None for other spans."""
    sampled_ids: tuple[int, ...] | None = None
    """The part of `ids` that the model has sampled; None if the span is rendered from its items."""
    effort: EffortSetting = "default"
    """Effort of the reasoning with which the response was generated. The header of a template may
    depend on it."""
    is_open: bool = False
    """Whether the span stands for a response that is being generated."""
    message: ChatMessage | None = None
    """Message that was passed to the template; None if the span is open or not tokenized yet."""

    @property
    def is_rendered(self) -> bool:
        return self.sampled_ids is None and not self.is_open


class Tokenization:
    """Assigns token ids to the head, then to spans in the order in which they are added."""

    def __init__(
        self,
        template: ChatTemplate,
        system: str | None,
        tools: ToolSchemas,
        tokenized: Sequence[Span] = (),
    ) -> None:
        """`tokenized`: the head and the spans that already have their ids; if empty, the head is
        tokenized."""
        self._template = template
        self._tools = tools
        self._system_messages = 0 if system is None else 1
        """1 if the head contains a system message, else 0."""
        self._messages: list[ChatMessage] = []
        if system is not None:
            self._messages.append(ChatMessage(role="system", content=system))
        self._spans = list(tokenized) or [self._tokenize_head(system)]
        self._messages += [span.message or _render_span(span) for span in self._spans[1:]]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans in order. The first one is the head."""
        return tuple(self._spans)

    @property
    def length(self) -> int:
        return count_ids(self._spans)

    @property
    def last(self) -> Span:
        return self._spans[-1]

    def add(self, span: Span) -> None:
        message = _render_span(span)
        if not span.is_open:
            span = _with_ids(span, self._tokenize(span, message), message)
        self._spans.append(span)
        self._messages.append(message)

    def _tokenize(self, span: Span, message: ChatMessage) -> list[int]:
        if span.sampled_ids is None:
            return self._extend([message])
        variant = self._template.for_effort(span.effort)
        if not variant.renders_messages_like(self._template):
            variant = self._template
        return [
            *self._extend([], with_header=True, template=variant),
            *span.sampled_ids,
            *self._template.encode_ending(span.sampled_ids),
        ]

    def render_header(self) -> list[int]:
        """Return the token ids of the header, which opens the assistant's turn. May replace the ids
        of earlier spans, which some templates render differently before a header."""
        return self._extend([], with_header=True)

    def _tokenize_head(self, system: str | None) -> Span:
        if system is None:
            return Span(ids=tuple(self._template.encode_head(None, self._tools)))
        return Span(ids=tuple(self._template.extend([], self._messages, self._tools).ids))

    def _extend(
        self,
        new: list[ChatMessage],
        *,
        with_header: bool = False,
        template: ChatTemplate | None = None,
    ) -> list[int]:
        """Return the ids of the one message in `new`, or those of the header if `new` is empty.
        Also replaces the ids of earlier spans that the template renders differently as a result."""
        is_sampled = self._spans[-1].sampled_ids is not None
        extension = (template or self._template).extend(
            self._messages, new, self._tools, with_header=with_header, is_sampled=is_sampled
        )
        segments = [*extension.segments, extension.header] if with_header else [*extension.segments]
        ids = segments.pop()
        changed = self._messages[extension.kept_messages :]
        assert len(segments) == len(changed), "one segment per message"
        for at, segment in enumerate(segments, extension.kept_messages):
            self._revise(at - self._system_messages + 1, segment)
        if new and not self._messages:
            ids = self._without_head(ids)
        return ids

    def _revise(self, at: int, ids: list[int]) -> None:
        """Replace the ids of the span at index `at`, where 0 is the head. Open spans are left
        unchanged."""
        if at == 1 and self._system_messages == 0:
            ids = self._without_head(ids)
        span = self._spans[at]
        if not span.is_open and span.ids != tuple(ids):
            self._spans[at] = Span(
                span.items, tuple(ids), span.response_id, effort=span.effort, message=span.message
            )

    def _without_head(self, ids: list[int]) -> list[int]:
        """Return the ids of the first message without those of the head. Without a system message,
        the template writes the head in front of the first message. If the ids do not begin with the
        head, the head becomes empty."""
        head = self._spans[0].ids
        if tuple(ids[: len(head)]) == head:
            return ids[len(head) :]
        self._spans[0] = Span()
        return ids


def merge_tool_calls(spans: Sequence[Span]) -> list[Span]:
    """Merge each span into the one before it where `is_merged_span` says so."""
    result: list[Span] = []
    for span in spans:
        if result and is_merged_span(result[-1], span):
            result[-1] = Span(result[-1].items + span.items)
        else:
            result.append(span)
    return result


def is_merged_span(before: Span, span: Span) -> bool:
    """Whether a span of function calls, or of what follows reasoning, is merged into the assistant
    span before it, because both are rendered from their items."""
    return before.is_rendered and span.is_rendered and is_merged_into(before.items, span.items[0])


def count_ids(spans: Iterable[Span]) -> int:
    return sum(map(len, map(_ids_of, spans)))


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Count the leading elements that are equal. Compares slices, so that long sequences with the
    same objects cost microseconds."""
    one, other = tuple(one), tuple(other)
    same, end = 0, min(len(one), len(other))
    while same < end:
        middle = (same + end + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _render_span(span: Span) -> ChatMessage:
    if span.message is not None:
        return span.message
    return render_message(span.items) if span.items else ChatMessage(role="assistant")


def _with_ids(span: Span, ids: list[int], message: ChatMessage) -> Span:
    """Return the span with `ids` and `message`. Returns the same object if nothing changes, because
    spans are compared by identity."""
    if span.ids == tuple(ids) and span.message is not None:
        return span
    return msgspec.structs.replace(span, ids=tuple(ids), message=message)

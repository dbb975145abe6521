"""A conversation, as items and as token ids. Pure: an edit returns a new conversation.

    head                 span           span                               span
    ├─ instructions, ────┼─ user item ──┼─ response: header, sampled ids, ─┼─ call output ...
       tools                               ending (items: message, call)

A span is the ids of one message, or of one response of the model. Sampled ids are kept as they were
drawn and never rendered again, unless the template itself renders them differently
(`tokenization`). A conversation is the concatenation of its spans, and an edit changes the ids from
one span on. An engine session that holds the ids of an older conversation finds the first id that
differs (`generation/engine_session`).

A span that is rendered holds one item, or an assistant message and the calls after it, which
templates expect in one message. A response that is being generated is an open span: it marks the
position of the response, whose ids are not known yet.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter

import msgspec

from continuo.engine import ChatTemplate, EffortSetting, ModelText, TooLong
from continuo.realtime.conversation.item_truncation import find_sampled_prefix
from continuo.realtime.conversation.rendering import render_tool, role_of, text_of
from continuo.realtime.conversation.tokenization import (
    Span,
    Tokenization,
    ToolSchemas,
    common_prefix_length,
    count_ids,
    is_merged_span,
    merge_tool_calls,
)
from continuo.realtime.protocol.events import Rewind
from continuo.realtime.protocol.items import ROOT, ContentPart, Item, MessageItem, ReasoningItem
from continuo.realtime.protocol.settings import GenerationSettings, Tool

_NON_MERGING_SUFFIX = " zq9"
"""Text that is never merged with preceding text into one token. `with_draft` uses it to find the
token ids that stay the same whatever text follows."""
_is_open = attrgetter("is_open")


class Conversation(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Items and token ids of a conversation. The ids are those of `head`, followed by those of
    `spans`; `length` is their number."""

    template: ChatTemplate
    instructions: str
    tools: tuple[Tool, ...]
    head: Span
    spans: tuple[Span, ...] = ()
    out_of_window: tuple[Item, ...] = ()
    """Items before all spans. They have no token ids, because the model no longer sees them."""

    @classmethod
    def start(cls, template: ChatTemplate, settings: GenerationSettings) -> "Conversation":
        template = template.for_effort(settings.reasoning.effort)
        empty = cls(template, settings.instructions, settings.tools, Span())
        return empty._tokenize([])

    # ------------------------------------------------------------ queries

    @property
    def all_spans(self) -> tuple[Span, ...]:
        return (self.head, *self.spans)

    @cached_property
    def length(self) -> int:
        return count_ids(self.all_spans)

    @cached_property
    def rendered_length(self) -> int:
        """Number of the ids whose text is rendered again when something is appended: those of the
        head, and those from the last user message on, unless the template depends on more."""
        indices = reversed(range(1, len(self.spans)))
        question = next((at for at in indices if _is_user_message(self.spans[at])), 0)
        if not self.template.renders_from_last_question:
            question = 0
        return len(self.head.ids) + count_ids(self.spans[question:])

    def ids(self) -> list[int]:
        return [id for span in self.all_spans for id in span.ids]

    def items(self) -> Iterator[Item]:
        """Yield the items in order, without reasoning; those out of window are the first."""
        return (item for item in self.items_with_reasoning() if not _is_reasoning(item))

    def items_with_reasoning(self) -> Iterator[Item]:
        yield from self.out_of_window
        for span in self.spans:
            yield from span.items

    def find(self, item_id: str) -> Item | None:
        for item in self._items_newest_first():
            if item.id == item_id:
                return None if _is_reasoning(item) else item
        return None

    def previous_item_id(self, item_id: str) -> str | None:
        """Return the id of the item before `item_id`, without reasoning, or None if that is the
        first item. Raises KeyError if there is no item `item_id`."""
        newest_first = self._items_newest_first()
        if all(item.id != item_id for item in newest_first):
            raise KeyError(item_id)
        return next((item.id for item in newest_first if not _is_reasoning(item)), None)

    @property
    def last_item_id(self) -> str | None:
        """The id of the last item, without those of open responses, or None if there is none."""
        closed = (span.items for span in reversed(self.spans) if span.items and not span.is_open)
        items = next(closed, self.out_of_window)
        return items[-1].id if items else None

    def _items_newest_first(self) -> Iterator[Item]:
        for span in reversed(self.spans):
            yield from reversed(span.items)
        yield from reversed(self.out_of_window)

    def open_response_before(self, item_id: str) -> str | None:
        """Return the id of the response that is being generated directly before the item `item_id`,
        or None if something else, or nothing, is there."""
        for span, before in pairwise(reversed(self.spans)):
            if span.items and span.items[0].id == item_id:
                return before.response_id if before.is_open else None
        return None

    def compute_rewind(self, old: "Conversation") -> Rewind | None:
        """Return the rewind that changes the token ids of the older conversation `old` to those of
        this one, or None if all old ids are kept. Open responses are ignored, because they have no
        ids."""
        same_spans = common_prefix_length(self.all_spans, old.all_spans)
        new_ids, old_ids = (
            [id for span in version.all_spans[same_spans:] for id in span.ids]
            for version in (self, old)
        )
        same_ids = common_prefix_length(new_ids, old_ids)
        if same_ids == len(old_ids):
            return None
        return Rewind(self.length - len(new_ids) + same_ids, len(new_ids) - same_ids)

    @cached_property
    def has_open_response(self) -> bool:
        """Whether a response is being generated."""
        return any(map(_is_open, self.spans))

    def is_in_open_response(self, item_id: str) -> bool:
        """Whether the item belongs to a response that is being generated."""
        return any(span.is_open for span in self.spans if _contains_item(span, item_id))

    def without_open_responses(self) -> "Conversation":
        """Return the conversation without the responses that are being generated."""
        if not self.has_open_response:
            return self
        return self._tokenize([span for span in self.spans if not span.is_open])

    def render_header(self) -> tuple["Conversation", list[int]]:
        """Render the header that opens a response at the end of the conversation. Returns the
        conversation, and the token ids of the header. Earlier spans may have different ids in the
        returned conversation, because some templates change earlier messages when a header
        follows."""
        tokenization = self._begin_tokenization(self.all_spans)
        header = tokenization.render_header()
        return self._from_tokenization(tokenization), header

    def before_response(self, response_id: str) -> "Conversation":
        """Return the conversation up to an open response, without that response."""
        return msgspec.structs.replace(self, spans=self.spans[: self._open_span_index(response_id)])

    def up_to_item(self, item_id: str | None) -> "Conversation":
        """Return the conversation up to and including an item, without open responses. `item_id`
        None: all items. Raises KeyError if there is no such item."""
        whole = self.without_open_responses()
        if item_id is None:
            return whole
        if whole._is_out_of_window(item_id):
            at = next(n for n, item in enumerate(whole.out_of_window) if item.id == item_id)
            kept = whole.out_of_window[: at + 1]
            return msgspec.structs.replace(whole, spans=(), out_of_window=kept)
        at = whole._span_index(item_id)
        last = whole.spans[at]
        if last.items[-1].id != item_id:
            last, _ = _split_span(last, item_id)
        return whole._tokenize([*whole.spans[:at], last])

    # ------------------------------------------------------------ edits

    def keeps_ids_with(self, settings: GenerationSettings) -> bool:
        """Whether the ids stay the same with other settings."""
        has_same_head = (settings.instructions, settings.tools) == (self.instructions, self.tools)
        template = self.template.for_effort(settings.reasoning.effort)
        return has_same_head and template.renders_messages_like(self.template)

    def with_settings(self, settings: GenerationSettings) -> "Conversation":
        template = self.template.for_effort(settings.reasoning.effort)
        if self.keeps_ids_with(settings):
            if template is self.template:
                return self
            return msgspec.structs.replace(self, template=template)
        fresh = Conversation(
            template,
            settings.instructions,
            settings.tools,
            Span(),
            out_of_window=self.out_of_window,
        )
        return fresh._tokenize(self.spans)

    def retokenize(self) -> "Conversation":
        """Tokenize all items again from their text. Needed if the token ids belong to another
        model, tokenizer or chat template. Open responses keep their positions. Raises BadRequest if
        the template cannot render an item."""
        spans = [
            new
            for span in self.spans
            for new in ([span] if span.is_open else [Span((item,)) for item in span.items])
        ]
        fresh = msgspec.structs.replace(self, head=Span(), spans=())
        return fresh._tokenize(spans)

    def without_oldest(self, target_tokens: int) -> "Conversation":
        """Move the oldest spans out of the window until at most `target_tokens` are left. The first
        span left is a user message if that is possible. The newest span always stays."""
        user_messages = [n for n, span in enumerate(self.spans) if _is_user_message(span)]
        for cuts in (user_messages, range(1, len(self.spans))):
            for at in cuts:
                if self.length - sum(len(span.ids) for span in self.spans[:at]) <= target_tokens:
                    return self._move_out_of_window(at)
        return self._move_out_of_window(len(self.spans) - 1)

    def with_draft(self, draft: str) -> "Conversation":
        """Append the draft as the beginning of a user message. Its span has only the token ids that
        stay the same whatever text follows."""
        versions = [
            self.add_item(
                MessageItem(id="draft", role="user", parts=(ContentPart("input_text", text),))
            )
            for text in (draft, draft + _NON_MERGING_SUFFIX)
        ]
        one, other = (version.spans[-1].ids for version in versions)
        last = Span(ids=one[: common_prefix_length(one, other)])
        return msgspec.structs.replace(versions[0], spans=(*versions[0].spans[:-1], last))

    def reuse_spans(self, items: Sequence[Item]) -> list[Span]:
        """Make spans for `items`. Where a span of this conversation has the same items, that span
        is returned, with its ids; all other spans are not tokenized yet."""
        spans: list[Span] = []
        while items:
            known = (
                span
                for span in self.spans
                if span.items and not span.is_open and span.items == tuple(items[: len(span.items)])
            )
            spans.append(next(known, None) or Span((items[0],)))
            items = items[len(spans[-1].items) :]
        return spans

    def with_items(self, items: Sequence[Item], tokens_max: int | None = None) -> "Conversation":
        return self.with_spans([Span((item,)) for item in items], tokens_max)

    def with_spans(
        self, new_spans: Sequence[Span], tokens_max: int | None = None
    ) -> "Conversation":
        """Append spans. Raises TooLong once there are more tokens than `tokens_max`."""
        spans = [*self.spans, *new_spans]
        return self._tokenize(spans, tokens_max=tokens_max)

    def with_items_out_of_window(self, items: Sequence[Item]) -> "Conversation":
        """Move the items of all spans out of window, and append `items` to the items out of
        window."""
        cut = self._move_out_of_window(len(self.spans))
        return msgspec.structs.replace(cut, out_of_window=(*cut.out_of_window, *items))

    def add_item(self, item: Item, after: str | None = None) -> "Conversation":
        """Insert an item after the item `after`; ROOT means the beginning, None the end. If `after`
        is out of window, the item becomes the first in the window. Raises KeyError if there is no
        item `after`."""
        spans = list(self.spans)
        at = len(spans)
        if after == ROOT or self._is_out_of_window(after):
            at = 0
        elif after is not None:
            at = 1 + self._span_index(after)
            last = spans[at - 1]
            if not last.is_open and last.items[-1].id != after:
                spans[at - 1 : at] = _split_span(last, after)
        spans.insert(at, Span((item,)))
        return self._tokenize(spans)

    def delete_item(self, item_id: str) -> "Conversation":
        """Delete an item. Raises KeyError if there is no such item."""
        if self._is_out_of_window(item_id):
            rest = tuple(item for item in self.out_of_window if item.id != item_id)
            return msgspec.structs.replace(self, out_of_window=rest)
        at = self._span_index(item_id)
        rest = tuple(item for item in self.spans[at].items if item.id != item_id)
        if all(map(_is_reasoning, rest)):
            rest = ()
        spans = [*self.spans[:at], *([Span(rest)] if rest else []), *self.spans[at + 1 :]]
        return self._tokenize(spans)

    def truncate_item(self, item: MessageItem, text: ModelText) -> "Conversation":
        """Replace the item with the same id by `item`, whose text is a prefix of the old text. If
        the item begins a sampled response, the tokens within the prefix are kept. Other items of
        the same response are rendered from their text.

            prefix  ├─ sampled tokens that end within it ─┼─ its last characters, encoded again ─┤
        """
        if self._is_out_of_window(item.id):
            items = (item if other.id == item.id else other for other in self.out_of_window)
            return msgspec.structs.replace(self, out_of_window=tuple(items))
        at = self._span_index(item.id)
        span = self.spans[at]
        others = tuple(other for other in span.items if other.id != item.id)
        new_spans = [Span((item,)), *([Span(others)] if others else [])]
        if span.sampled_ids is not None and span.items[0].id == item.id:
            prefix = text_of(item)
            ids, length = find_sampled_prefix(text, span.sampled_ids, len(prefix))
            if text.decode(ids) == prefix[:length]:
                ids += text.encode_untrusted(prefix[length:])
                new_spans[0] = Span(
                    (item,),
                    response_id=span.response_id,
                    sampled_ids=tuple(ids),
                    effort=span.effort,
                )
        elif others:
            items = (item if other.id == item.id else other for other in span.items)
            new_spans = [Span(tuple(items))]
        return self._tokenize([*self.spans[:at], *new_spans, *self.spans[at + 1 :]])

    def open_response(self, response_id: str) -> "Conversation":
        """Append an open span, which marks the position of a response to be generated."""
        return msgspec.structs.replace(
            self, spans=(*self.spans, Span(response_id=response_id, is_open=True))
        )

    def update_open_response(self, response_id: str, items: tuple[Item, ...]) -> "Conversation":
        """Set the items that an open response has so far."""
        at = self._open_span_index(response_id)
        span = msgspec.structs.replace(self.spans[at], items=items)
        return msgspec.structs.replace(self, spans=(*self.spans[:at], span, *self.spans[at + 1 :]))

    def commit_response(
        self,
        response_id: str,
        items: tuple[Item, ...],
        sampled_ids: Sequence[int],
        effort: EffortSetting = "default",
    ) -> "Conversation":
        """Replace the open span of a response by a span of its items and sampled ids, or remove it
        if there are no items. `effort`: that of the settings of the response."""
        if self.template.for_effort(effort) is self.template.for_effort("default"):
            effort = "default"
        at = self._open_span_index(response_id)
        committed = Span(
            items, response_id=response_id, sampled_ids=tuple(sampled_ids), effort=effort
        )
        spans = [*self.spans[:at], *([committed] if items else []), *self.spans[at + 1 :]]
        return self._tokenize(spans)

    # ------------------------------------------------------------ ids

    def _is_out_of_window(self, item_id: str | None) -> bool:
        return any(item.id == item_id for item in self.out_of_window)

    def _move_out_of_window(self, at: int) -> "Conversation":
        moved = tuple(item for span in self.spans[:at] for item in span.items)
        fresh = msgspec.structs.replace(self, spans=(), out_of_window=self.out_of_window + moved)
        return fresh._tokenize(self.spans[at:])

    def _span_index(self, item_id: str) -> int:
        for n, span in enumerate(self.spans):
            if _contains_item(span, item_id):
                return n
        raise KeyError(item_id)

    def _open_span_index(self, response_id: str) -> int:
        indices = reversed(range(len(self.spans)))
        return next(n for n in indices if _is_open_response(self.spans[n], response_id))

    def _tokenize(self, spans: Sequence[Span], *, tokens_max: int | None = None) -> "Conversation":
        """Return a conversation with `spans`. Leading spans that are also those of this
        conversation keep their ids, and the others are tokenized. Raises TooLong above
        `tokens_max` tokens."""
        since = common_prefix_length(self.spans, spans)
        if self._may_have_revised(since, spans):
            since = self._first_revisable(since)
        elif 0 < since < len(spans) and is_merged_span(spans[since - 1], spans[since]):
            since -= 1
        tokenization = self._begin_tokenization([self.head, *spans[:since]] if since else [])
        tokens = 0 if tokens_max is None else tokenization.length
        for span in merge_tool_calls(spans[since:]):
            tokenization.add(span)
            tokens += len(tokenization.last.ids)
            if tokens_max is not None and tokens > tokens_max:
                tokens = tokenization.length  # fewer, if a span has shortened those before it
                if tokens > tokens_max:
                    raise TooLong(f"more than {tokens_max:,} tokens")
        return self._from_tokenization(tokenization)

    def _may_have_revised(self, since: int, new_spans: Sequence[Span]) -> bool:
        """Whether the spans from index `since` on, which `new_spans` no longer contains, may have
        changed the ids of those before. If only the last span is replaced, by one that begins with
        the same item, that one changes them alike."""
        removed = self.spans[since:]
        if len(removed) == 1 and since < len(new_spans):
            old, new = removed[0].items, new_spans[since].items
            if old and new and old[0].id == new[0].id:
                return False
        return any(span.ids for span in removed)

    def _first_revisable(self, end: int) -> int:
        """Return the index of the first span whose ids may depend on the spans from index `end`
        on."""
        before = range(end - 1, 0, -1)
        if self.template.is_append_stable:
            # A span without ids has them in the next one.
            return next((at for at in before if self.spans[at].ids), 0)
        if self.template.renders_from_last_question:
            return next((at for at in before if _is_user_message(self.spans[at])), 0)
        return 0

    def _begin_tokenization(self, tokenized: Sequence[Span]) -> Tokenization:
        tools: ToolSchemas = tuple(render_tool(tool) for tool in self.tools)
        return Tokenization(self.template, self.instructions or None, tools, tokenized)

    def _from_tokenization(self, tokenization: Tokenization) -> "Conversation":
        if tokenization.spans == self.all_spans:
            return self
        head, *spans = tokenization.spans
        return msgspec.structs.replace(self, head=head, spans=tuple(spans))


def _is_reasoning(item: Item) -> bool:
    return isinstance(item, ReasoningItem)


def _contains_item(span: Span, item_id: str) -> bool:
    return any(item.id == item_id for item in span.items)


def _is_user_message(span: Span) -> bool:
    return bool(span.items) and role_of(span.items[0]) == "user"


def _is_open_response(span: Span, response_id: str) -> bool:
    return span.is_open and span.response_id == response_id


def _split_span(span: Span, after: str) -> tuple[Span, Span]:
    """Split a span after the item `after`. Both parts are rendered from their items; if the span is
    a response, its sampled ids are lost."""
    at = 1 + next(n for n, item in enumerate(span.items) if item.id == after)
    return Span(span.items[:at]), Span(span.items[at:])

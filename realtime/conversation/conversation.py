"""What was said, as items and as token ids. Pure: an edit gives a new conversation.

    head                 span           span                          span
    ├─ instructions, ────┼─ user item ──┼─ answer: header, sampled ids, ┼─ call output ...
       tools                               ending (items: message, call)

A span is the ids of one message, or of one answer of the model. Sampled ids are kept as they were
drawn and never rendered again, unless the template itself wants them said differently (`layout`).
A conversation is the concatenation of its spans, and an edit changes the ids from one span on. Who
holds the ids of an older conversation finds the first that differs (`strand`).

A span that is rendered holds one item, or an assistant's message and the calls after it, which
templates want in one message. An answer that is being made is an open span: it keeps the place,
its ids are not known yet.
"""

from collections.abc import Iterator, Sequence

import msgspec

from continuo.engine import ChatTemplate, ModelText, TooLong
from continuo.realtime.conversation.item_truncation import find_sampled_prefix
from continuo.realtime.conversation.rendering import render_tool, role_of, text_of
from continuo.realtime.conversation.tokenization import (
    Span,
    Tokenization,
    ToolSchemas,
    common_prefix_length,
    merge_tool_calls,
)
from continuo.realtime.protocol.events import Rewind
from continuo.realtime.protocol.items import ROOT, ContentPart, Item, MessageItem
from continuo.realtime.protocol.settings import GenerationSettings, Tool

_NON_MERGING_SUFFIX = " zq9"
"""Words that nothing merges with."""


class Conversation(msgspec.Struct, frozen=True, eq=False):
    """`head` and `spans` together are the ids; `length` counts them."""

    template: ChatTemplate
    instructions: str
    tools: tuple[Tool, ...]
    head: Span
    spans: tuple[Span, ...] = ()
    out_of_window: tuple[Item, ...] = ()
    """Items in front of all spans that the model does not see any more."""

    @classmethod
    def start(cls, template: ChatTemplate, settings: GenerationSettings) -> "Conversation":
        empty = cls(template, settings.instructions, settings.tools, Span())
        return empty._tokenize([], since=0)

    # ------------------------------------------------------------ looking

    @property
    def all_spans(self) -> tuple[Span, ...]:
        return (self.head, *self.spans)

    @property
    def length(self) -> int:
        return sum(len(span.ids) for span in self.all_spans)

    def ids(self) -> list[int]:
        return [id for span in self.all_spans for id in span.ids]

    def items(self) -> Iterator[Item]:
        """Dropped ones too."""
        yield from self.out_of_window
        for span in self.spans:
            yield from span.items

    def find(self, item_id: str) -> Item | None:
        return next((item for item in self.items() if item.id == item_id), None)

    def previous_item_id(self, item_id: str) -> str | None:
        """The id of the item before this one."""
        before = None
        for item in self.items():
            if item.id == item_id:
                return before
            before = item.id
        raise KeyError(item_id)

    def compute_rewind(self, old: "Conversation") -> Rewind | None:
        """From the first token on that is not that of the older conversation; None: all of that
        stays. Answers that are being made count nothing."""
        same = common_prefix_length(self.all_spans, old.all_spans)
        here, there = (
            [id for span in one.all_spans[same:] for id in span.ids] for one in (self, old)
        )
        keep = common_prefix_length(here, there)
        if keep == len(there):
            return None
        return Rewind(self.length - len(here) + keep, len(here) - keep)

    @property
    def has_open_response(self) -> bool:
        """Whether an answer is being made."""
        return any(span.is_open for span in self.spans)

    def is_in_open_response(self, item_id: str) -> bool:
        """Whether the item belongs to an answer that is being made."""
        return any(span.is_open for span in self.spans if _contains_item(span, item_id))

    def without_open_responses(self) -> "Conversation":
        """Without answers that are being made."""
        if not self.has_open_response:
            return self
        return self._tokenize([span for span in self.spans if not span.is_open], since=0)

    def render_header(self) -> tuple["Conversation", list[int]]:
        """As it stands when an answer is wanted, and the header that opens it."""
        layout = self._begin_tokenization(self.all_spans)
        header = layout.render_header()
        return self._from_tokenization(layout), header

    def before_response(self, response_id: str) -> "Conversation":
        """As it was when the answer that is being made was begun."""
        at = next(n for n, span in enumerate(self.spans) if _is_open_response(span, response_id))
        return msgspec.structs.replace(self, spans=self.spans[:at])

    def up_to_item(self, item_id: str | None) -> "Conversation":
        """As it was when this item was the last (None: as it is), without what is being made.
        Raises KeyError."""
        whole = self.without_open_responses()
        if item_id is None:
            return whole
        if whole._is_out_of_window(item_id):
            at = next(n for n, item in enumerate(whole.out_of_window) if item.id == item_id)
            kept = whole.out_of_window[: at + 1]
            return msgspec.structs.replace(whole, spans=(), out_of_window=kept)
        at = whole._span_index(item_id)
        last = whole.spans[at]
        if last.items[-1].id == item_id:
            return msgspec.structs.replace(whole, spans=whole.spans[: at + 1])
        return whole._tokenize([*whole.spans[:at], _split_span(last, item_id)[0]], since=at)

    # ------------------------------------------------------------ editing

    def with_settings(self, settings: GenerationSettings) -> "Conversation":
        if (settings.instructions, settings.tools) == (self.instructions, self.tools):
            return self
        fresh = Conversation(
            self.template,
            settings.instructions,
            settings.tools,
            Span(),
            out_of_window=self.out_of_window,
        )
        return fresh._tokenize(self.spans, since=0)

    def retokenize(self) -> "Conversation":
        """The conversation with ids made anew from its text: those that it had are of another
        model, tokenizer or template. Answers that are being made keep their place. Raises
        BadRequest where the template has no place for an item."""
        spans = [
            new
            for span in self.spans
            for new in ([span] if span.is_open else [Span((item,)) for item in span.items])
        ]
        fresh = msgspec.structs.replace(self, head=Span(), spans=())
        return fresh._tokenize(spans, since=0)

    def without_oldest(self, target_tokens: int) -> "Conversation":
        """Drops the oldest items until at most `target` tokens are left, if it can, of which the
        first is a user's message, if it can. The newest span stays."""
        questions = [
            n for n, span in enumerate(self.spans) if span.items and _is_user_message(span)
        ]
        for cuts in (questions, range(1, len(self.spans))):
            for at in cuts:
                if self.length - sum(len(span.ids) for span in self.spans[:at]) <= target_tokens:
                    return self._move_out_of_window(at)
        return self._move_out_of_window(len(self.spans) - 1)

    def with_draft(self, draft: str) -> "Conversation":
        """With a user's message at the end that begins with these words: its ids are those that
        stay whatever follows them."""
        spans = [
            self.add_item(
                MessageItem(id="draft", role="user", parts=(ContentPart("input_text", text),))
            )
            for text in (draft, draft + _NON_MERGING_SUFFIX)
        ]
        one, other = (made.spans[-1].ids for made in spans)
        last = Span(ids=one[: common_prefix_length(one, other)])
        return msgspec.structs.replace(spans[0], spans=(*spans[0].spans[:-1], last))

    def reuse_spans(self, items: Sequence[Item]) -> list[Span]:
        """Spans that say these items, those of this conversation where it has them."""
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
        """Raises TooLong once there are more tokens than `tokens_max`."""
        spans = [*self.spans, *new_spans]
        return self._tokenize(spans, since=len(self.spans), tokens_max=tokens_max)

    def with_items_out_of_window(self, items: Sequence[Item]) -> "Conversation":
        """The conversation with these items at its end, all of it dropped from the model's
        context."""
        cut = self._move_out_of_window(len(self.spans))
        return msgspec.structs.replace(cut, out_of_window=(*cut.out_of_window, *items))

    def add_item(self, item: Item, after: str | None = None) -> "Conversation":
        """Raises KeyError if there is no item `after`. After a dropped one is in front of all that
        the model sees."""
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
        return self._tokenize(spans, since=at)

    def delete_item(self, item_id: str) -> "Conversation":
        """Raises KeyError if there is no such item."""
        if self._is_out_of_window(item_id):
            rest = tuple(item for item in self.out_of_window if item.id != item_id)
            return msgspec.structs.replace(self, out_of_window=rest)
        at = self._span_index(item_id)
        rest = tuple(item for item in self.spans[at].items if item.id != item_id)
        spans = [*self.spans[:at], *([Span(rest)] if rest else []), *self.spans[at + 1 :]]
        return self._tokenize(spans, since=at)

    def truncate_item(self, item: MessageItem, text: ModelText) -> "Conversation":
        """The item of that id becomes this one, whose text is a beginning of what it was. Of an
        answer, the tokens stay that were heard whole; what followed in it is rendered.

            sampled  ├─ heard whole ─┼─ the rest of the text, as far as heard, encoded again
        """
        if self._is_out_of_window(item.id):
            now = (item if other.id == item.id else other for other in self.out_of_window)
            return msgspec.structs.replace(self, out_of_window=tuple(now))
        at = self._span_index(item.id)
        span = self.spans[at]
        behind = tuple(other for other in span.items if other.id != item.id)
        made = [Span((item,)), *([Span(behind)] if behind else [])]
        if span.sampled_ids is not None and span.items[0].id == item.id:
            words = text_of(item)
            ids, length = find_sampled_prefix(text, span.sampled_ids, len(words))
            if text.decode(ids) == words[:length]:
                ids += text.encode_untrusted(words[length:])
                made[0] = Span((item,), response_id=span.response_id, sampled_ids=tuple(ids))
        elif behind:
            now = (item if other.id == item.id else other for other in span.items)
            made = [Span(tuple(now))]
        return self._tokenize([*self.spans[:at], *made, *self.spans[at + 1 :]], since=at)

    def open_response(self, response_id: str) -> "Conversation":
        """Keeps a place at the end for an answer that is going to be made."""
        return msgspec.structs.replace(
            self, spans=(*self.spans, Span(response_id=response_id, is_open=True))
        )

    def update_open_response(self, response_id: str, items: tuple[Item, ...]) -> "Conversation":
        """The open answer has these items so far."""
        return msgspec.structs.replace(
            self,
            spans=tuple(
                msgspec.structs.replace(span, items=items)
                if _is_open_response(span, response_id)
                else span
                for span in self.spans
            ),
        )

    def commit_response(
        self, response_id: str, items: tuple[Item, ...], sampled_ids: Sequence[int]
    ) -> "Conversation":
        """Puts the answer into its place; one without items leaves no trace."""
        at = next(n for n, span in enumerate(self.spans) if _is_open_response(span, response_id))
        made = Span(items, response_id=response_id, sampled_ids=tuple(sampled_ids))
        spans = [*self.spans[:at], *([made] if items else []), *self.spans[at + 1 :]]
        return self._tokenize(spans, since=at)

    # ------------------------------------------------------------ ids

    def _is_out_of_window(self, item_id: str | None) -> bool:
        return any(item.id == item_id for item in self.out_of_window)

    def _move_out_of_window(self, at: int) -> "Conversation":
        gone = tuple(item for span in self.spans[:at] for item in span.items)
        fresh = msgspec.structs.replace(self, spans=(), out_of_window=self.out_of_window + gone)
        return fresh._tokenize(self.spans[at:], since=0)

    def _span_index(self, item_id: str) -> int:
        for n, span in enumerate(self.spans):
            if _contains_item(span, item_id):
                return n
        raise KeyError(item_id)

    def _tokenize(
        self, spans: Sequence[Span], *, since: int, tokens_max: int | None = None
    ) -> "Conversation":
        """With these spans, of which those before `since` are as they were. Lays out the rest; all
        of them if what stands behind may have changed what stands before. Raises TooLong."""
        behind = any(span.ids for span in self.spans[since:])
        if behind and not self.template.is_append_stable:
            since = 0
        since = max(0, since - 1)  # a call may join it
        layout = self._begin_tokenization([self.head, *spans[:since]] if since else [])
        tokens = layout.length
        for span in merge_tool_calls(spans[since:]):
            layout.add(span)
            tokens += len(layout.last.ids)
            if tokens_max is not None and tokens > tokens_max:
                tokens = layout.length  # less, where a span has changed those before it
                if tokens > tokens_max:
                    raise TooLong(f"more than {tokens_max:,} tokens")
        return self._from_tokenization(layout)

    def _begin_tokenization(self, tokenized: Sequence[Span]) -> Tokenization:
        tools: ToolSchemas = tuple(render_tool(tool) for tool in self.tools)
        return Tokenization(self.template, self.instructions or None, tools, tokenized)

    def _from_tokenization(self, tokenization: Tokenization) -> "Conversation":
        head, *spans = tokenization.spans
        return msgspec.structs.replace(self, head=head, spans=tuple(spans))


def _contains_item(span: Span, item_id: str) -> bool:
    return any(item.id == item_id for item in span.items)


def _is_user_message(span: Span) -> bool:
    return role_of(span.items[0]) == "user"


def _is_open_response(span: Span, response_id: str) -> bool:
    return span.is_open and span.response_id == response_id


def _split_span(span: Span, after: str) -> tuple[Span, Span]:
    """Two rendered spans; an answer that is taken apart loses its sampled ids."""
    at = 1 + next(n for n, item in enumerate(span.items) if item.id == after)
    return Span(span.items[:at]), Span(span.items[at:])

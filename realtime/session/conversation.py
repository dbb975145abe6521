"""What was said, as items and as token ids. Pure: an edit gives a new conversation.

    head                 span           span                          span
    ├─ instructions, ────┼─ user item ──┼─ answer: header, sampled ids, ┼─ call output ...
       tools                               ending (items: message, call)

A span is the ids of one message, or of one answer of the model. Sampled ids are kept as they were
drawn and never rendered again; what surrounds them is made from what stands before them. So a
conversation is the concatenation of its spans, and an edit changes the ids from one span on. Who
holds the ids of an older conversation finds the first that differs (`strand`).

A span that is rendered holds one item, or an assistant's message and the calls after it, which
templates want in one message. An answer that is being made is an open span: it keeps the place,
its ids are not known yet.
"""

from collections.abc import Iterator, Sequence

import msgspec

from engine import ChatTemplate
from realtime.protocol.core import ROOT, Item, Settings, Tool
from realtime.session.rendering import Role, joins, message_of, role_of, tool_of


class Span(msgspec.Struct, frozen=True, eq=False):
    items: tuple[Item, ...] = ()
    ids: tuple[int, ...] = ()
    before: Role | None = None
    """The role its ids stand behind; None: the head."""
    answer: str | None = None
    """The answer it is, or comes from."""
    sampled: tuple[int, ...] | None = None
    """None: rendered from the items."""
    open: bool = False

    @property
    def rendered(self) -> bool:
        return self.sampled is None and not self.open

    @property
    def after(self) -> Role:
        return role_of(self.items[-1]) if self.items else "assistant"


class Conversation(msgspec.Struct, frozen=True, eq=False):
    """`head` and `spans` together are the ids; `length` counts them."""

    template: ChatTemplate
    instructions: str
    tools: tuple[Tool, ...]
    head: Span
    spans: tuple[Span, ...] = ()

    @classmethod
    def start(cls, template: ChatTemplate, settings: Settings) -> "Conversation":
        system = settings.instructions or None
        ids = template.head(system, [tool_of(tool) for tool in settings.tools])
        return cls(template, settings.instructions, settings.tools, Span(ids=tuple(ids)))

    # ------------------------------------------------------------ looking

    @property
    def all_spans(self) -> tuple[Span, ...]:
        return (self.head, *self.spans)

    @property
    def length(self) -> int:
        return len(self.head.ids) + sum(len(span.ids) for span in self.spans)

    def ids(self) -> list[int]:
        return [id for span in self.all_spans for id in span.ids]

    def items(self) -> Iterator[Item]:
        for span in self.spans:
            yield from span.items

    def find(self, item_id: str) -> Item | None:
        return next((item for item in self.items() if item.id == item_id), None)

    def previous(self, item_id: str) -> str | None:
        """The id of the item before this one."""
        before = None
        for item in self.items():
            if item.id == item_id:
                return before
            before = item.id
        raise KeyError(item_id)

    def is_open(self, item_id: str) -> bool:
        """Whether the item belongs to an answer that is being made."""
        return any(span.open for span in self.spans if _holds(span, item_id))

    def header(self) -> list[int]:
        """What opens the assistant's turn behind the last span."""
        return self.template.answer(self.spans[-1].after if self.spans else None)

    def closed(self) -> "Conversation":
        """Without answers that are being made."""
        if not any(span.open for span in self.spans):
            return self
        return self._with([span for span in self.spans if not span.open], since=0)

    # ------------------------------------------------------------ editing

    def configured(self, settings: Settings) -> "Conversation":
        if (settings.instructions, settings.tools) == (self.instructions, self.tools):
            return self
        fresh = Conversation.start(self.template, settings)
        return fresh._with(self.spans, since=0, head_changed=True)

    def with_items(self, items: Sequence[Item]) -> "Conversation":
        conversation = self
        for item in items:
            conversation = conversation.add(item)
        return conversation

    def add(self, item: Item, after: str | None = None) -> "Conversation":
        """Raises KeyError if there is no item `after`."""
        spans = list(self.spans)
        at = len(spans)
        if after == ROOT:
            at = 0
        elif after is not None:
            at = 1 + self._index(after)
            last = spans[at - 1]
            if not last.open and last.items[-1].id != after:
                spans[at - 1 : at] = _split(last, after)
        spans.insert(at, Span((item,)))
        return self._with(spans, since=at - 1)

    def drop(self, item_id: str) -> "Conversation":
        """Raises KeyError if there is no such item."""
        at = self._index(item_id)
        rest = tuple(item for item in self.spans[at].items if item.id != item_id)
        spans = [*self.spans[:at], *([Span(rest)] if rest else []), *self.spans[at + 1 :]]
        return self._with(spans, since=at)

    def open(self, answer: str) -> "Conversation":
        """Keeps a place at the end for an answer that is going to be made."""
        before = self.spans[-1].after if self.spans else None
        span = Span(before=before, answer=answer, open=True)
        return msgspec.structs.replace(self, spans=(*self.spans, span))

    def show(self, answer: str, items: tuple[Item, ...]) -> "Conversation":
        """The open answer has these items so far."""
        return msgspec.structs.replace(
            self,
            spans=tuple(
                msgspec.structs.replace(span, items=items) if _open_answer(span, answer) else span
                for span in self.spans
            ),
        )

    def settle(
        self, answer: str, items: tuple[Item, ...], sampled: Sequence[int]
    ) -> "Conversation":
        """Puts the answer into its place; one without items leaves no trace."""
        at = next(n for n, span in enumerate(self.spans) if _open_answer(span, answer))
        made = Span(items, answer=answer, sampled=tuple(sampled))
        spans = [*self.spans[:at], *([made] if items else []), *self.spans[at + 1 :]]
        return self._with(spans, since=at)

    # ------------------------------------------------------------ ids

    def _index(self, item_id: str) -> int:
        for n, span in enumerate(self.spans):
            if _holds(span, item_id):
                return n
        raise KeyError(item_id)

    def _with(
        self, spans: Sequence[Span], *, since: int, head_changed: bool = False
    ) -> "Conversation":
        """Lays the spans out from `since` on: those that stand behind another role now, and those
        not laid out yet, get their ids."""
        since = max(0, since - 1)
        laid = list(spans[:since])
        for span in _joined(spans[since:]):
            before = laid[-1].after if laid else None
            known = span.open or bool(span.ids)
            moved = before != span.before or (before is None and head_changed)
            laid.append(self._laid(span, before) if moved or not known else span)
        return msgspec.structs.replace(self, spans=tuple(laid))

    def _laid(self, span: Span, before: Role | None) -> Span:
        if span.open:
            return msgspec.structs.replace(span, before=before)
        if span.sampled is not None:
            ending = self.template.ending(span.sampled)
            ids = [*self.template.answer(before), *span.sampled, *ending]
        elif before is None:
            ids = self.template.message(
                None,
                message_of(span.items),
                system=self.instructions or None,
                tools=[tool_of(tool) for tool in self.tools],
            )
        else:
            ids = self.template.message(before, message_of(span.items))
        return msgspec.structs.replace(span, ids=tuple(ids), before=before)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Calls go into the assistant's message before them, as far as both are rendered."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last and last.rendered and span.rendered and joins(last.items, span.items[0]):
            joined[-1] = Span(last.items + span.items)
        else:
            joined.append(span)
    return joined


def _holds(span: Span, item_id: str) -> bool:
    return any(item.id == item_id for item in span.items)


def _open_answer(span: Span, answer: str) -> bool:
    return span.open and span.answer == answer


def _split(span: Span, after: str) -> tuple[Span, Span]:
    """Two rendered spans; an answer that is taken apart loses its sampled ids."""
    at = 1 + next(n for n, item in enumerate(span.items) if item.id == after)
    return Span(span.items[:at]), Span(span.items[at:])

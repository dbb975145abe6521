"""Answers as the store keeps them: what was said to each, what it said, and what was told of it.

A kept answer's history is its parent's, then its own: its input, rendered again when it is needed,
and the ids that were drawn for it.
"""

import logging
from collections.abc import Sequence

import msgspec

from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import is_of
from continuo.realtime.protocol.events import Told
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Answer
from continuo.realtime.responses.event_stream import Recording
from continuo.realtime.store import Entry, Kept, Store, StoreError

log = logging.getLogger(__name__)

DEPTH_MAX = 10_000
"""Answers that stand behind one another; a longer history is not read."""


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an entry. `answer`: that of the model whose ids the entry has; `model`: digest of
    that model."""

    items: list[Item]
    answer: str | None = None
    model: str = ""


_encoder = msgspec.json.Encoder()
_said = msgspec.json.Decoder(_Said)
_told = msgspec.json.Decoder(list[Told])


class Keeper:
    """`for_s` is how long. Where there is no store, nothing is kept."""

    def __init__(self, store: Store | None, for_s: float) -> None:
        self._store = store
        self._for_s = for_s

    async def keep(
        self,
        tenant: str,
        parent: str | None,
        spans: Sequence[Span],
        answer: Answer,
        told: list[Told],
        model: str,
    ) -> bool:
        """`spans` follow the history of `parent`; their ids are of the model with this digest.
        Whether it is kept."""
        if self._store is None:
            return False
        kept = Kept(
            id=answer.id,
            tenant=tenant,
            parent=parent,
            entries=tuple(_entry(span, model) for span in spans),
            body=_encoder.encode(told),
        )
        try:
            await self._store.keep(kept, self._for_s)
        except StoreError as error:
            log.warning("response %s is not kept: %s", answer.id, error)
            return False
        return True

    async def forget(self, id: str, tenant: str) -> bool:
        """Whether it was there. Raises StoreError."""
        if self._store is None or await self._find(id, tenant) is None:
            return False
        await self._store.keep(Kept(id=id, tenant=tenant), 0.0)  # overwritten, and over at once
        return True

    async def recording(self, id: str, tenant: str) -> Recording | None:
        """What was told of it. Raises StoreError."""
        kept = await self._find(id, tenant)
        return None if kept is None else Recording(_told.decode(kept.body))

    async def history(self, id: str, tenant: str, model: str) -> list[Span] | None:
        """All that was said up to and including it, as spans that are not laid out; None if some of
        it is not there any more. Ids of another model than that with this digest are left out.
        Raises StoreError."""
        chain: list[Kept] = []
        wanted: str | None = id
        while wanted is not None:
            kept = await self._find(wanted, tenant)
            if kept is None or len(chain) >= DEPTH_MAX:
                return None
            chain.append(kept)
            wanted = kept.parent
        entries = [entry for kept in reversed(chain) for entry in kept.entries]
        spans = [span for entry in entries for span in _spans(entry, model)]
        if sum(span.sampled is not None for span in spans) < sum(bool(e.ids) for e in entries):
            log.warning("response %s was made on another model: it is rendered anew", id)
        return spans

    async def _find(self, id: str, tenant: str) -> Kept | None:
        """None, too, if it is another tenant's."""
        if self._store is None:
            return None
        kept = await self._store.kept(id)
        return kept if kept is not None and kept.tenant == tenant else None


def _entry(span: Span, model: str) -> Entry:
    if span.sampled is None:
        return Entry(_encoder.encode(_Said(list(span.items))))
    return Entry(_encoder.encode(_Said(list(span.items), span.answer, model)), span.sampled)


def _spans(entry: Entry, model: str) -> list[Span]:
    said = _said.decode(entry.body)
    if said.answer is None or not is_of(said.model, model):
        return [Span((item,)) for item in said.items]
    return [Span(tuple(said.items), answer=said.answer, sampled=entry.ids)]

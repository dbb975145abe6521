"""Answers as the store keeps them: what was said to each, what it said, and what was told of it.

A kept answer's history is its parent's, then its own: its input, rendered again when it is needed,
and the ids that were drawn for it.
"""

import logging
from collections.abc import Sequence

import msgspec

from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import is_same_model
from continuo.realtime.protocol.events import ResponseEvent
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Response
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.store import Entry, Store, StoredResponse, StoreError

log = logging.getLogger(__name__)

HISTORY_DEPTH_MAX = 10_000
"""Answers that stand behind one another; a longer history is not read."""


class _EntryBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an entry. `answer`: that of the model whose ids the entry has; `model`: digest of
    that model."""

    items: list[Item]
    answer: str | None = None
    model: str = ""


_encoder = msgspec.json.Encoder()
_entry_body_decoder = msgspec.json.Decoder(_EntryBody)
_events_decoder = msgspec.json.Decoder(list[ResponseEvent])


class ResponseArchive:
    """`for_s` is how long. Where there is no store, nothing is kept."""

    def __init__(self, store: Store | None, ttl_s: float) -> None:
        self._store = store
        self._ttl_s = ttl_s

    async def put(
        self,
        tenant: str,
        parent_id: str | None,
        spans: Sequence[Span],
        response: Response,
        events: list[ResponseEvent],
        model_digest: str,
    ) -> bool:
        """`spans` follow the history of `parent`; their ids are of the model with this digest.
        Whether it is kept."""
        if self._store is None:
            return False
        kept = StoredResponse(
            id=response.id,
            tenant=tenant,
            parent=parent_id,
            entries=tuple(_entry_of(span, model_digest) for span in spans),
            body=_encoder.encode(events),
        )
        try:
            await self._store.put_response(kept, self._ttl_s)
        except StoreError as error:
            log.warning("response %s is not kept: %s", response.id, error)
            return False
        return True

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Whether it was there. Raises StoreError."""
        if self._store is None or await self._find(response_id, tenant) is None:
            return False
        await self._store.put_response(
            StoredResponse(id=response_id, tenant=tenant), 0.0
        )  # overwritten, and over at once
        return True

    async def load_event_stream(self, response_id: str, tenant: str) -> EventStream | None:
        """What was told of it. Raises StoreError."""
        kept = await self._find(response_id, tenant)
        return None if kept is None else EventStream(_events_decoder.decode(kept.body))

    async def load_history(
        self, response_id: str, tenant: str, model_digest: str
    ) -> list[Span] | None:
        """All that was said up to and including it, as spans that are not laid out; None if some of
        it is not there any more. Ids of another model than that with this digest are left out.
        Raises StoreError."""
        chain: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            kept = await self._find(wanted, tenant)
            if kept is None or len(chain) >= HISTORY_DEPTH_MAX:
                return None
            chain.append(kept)
            wanted = kept.parent
        entries = [entry for kept in reversed(chain) for entry in kept.entries]
        spans = [span for entry in entries for span in _spans_of(entry, model_digest)]
        if sum(span.sampled_ids is not None for span in spans) < sum(bool(e.ids) for e in entries):
            log.warning("response %s was made on another model: it is rendered anew", response_id)
        return spans

    async def _find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """None, too, if it is another tenant's."""
        if self._store is None:
            return None
        kept = await self._store.find_response(response_id)
        return kept if kept is not None and kept.tenant == tenant else None


def _entry_of(span: Span, model_digest: str) -> Entry:
    if span.sampled_ids is None:
        return Entry(_encoder.encode(_EntryBody(list(span.items))))
    return Entry(
        _encoder.encode(_EntryBody(list(span.items), span.response_id, model_digest)),
        span.sampled_ids,
    )


def _spans_of(entry: Entry, model_digest: str) -> list[Span]:
    said = _entry_body_decoder.decode(entry.body)
    if said.answer is None or not is_same_model(said.model, model_digest):
        return [Span((item,)) for item in said.items]
    return [Span(tuple(said.items), response_id=said.answer, sampled_ids=entry.ids)]

"""Response archive: finished responses in the store, with input, output and events, for a time.

The history of a stored response is the history of its parent, followed by its own input and output.
Input is rendered again when needed; output is stored with its sampled ids.
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
"""Maximum number of responses in one chain of parents; a longer history is not loaded."""


class _EntryBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an entry, as stored.

    `answer`: id of the response whose sampled ids the entry has; `model`: digest of the model that
    sampled them.
    """

    items: list[Item]
    answer: str | None = None
    model: str = ""


_encoder = msgspec.json.Encoder()
_entry_body_decoder = msgspec.json.Decoder(_EntryBody)
_events_decoder = msgspec.json.Decoder(list[ResponseEvent])


class ResponseArchive:
    """The stored responses of all tenants. Without a store, the archive is always empty."""

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
        """Store a response. Returns False if the store is missing or unavailable.

        `spans`: what the response adds to the history of its parent. `model_digest`: digest of the
        model that sampled their token ids.
        """
        if self._store is None:
            return False
        stored = StoredResponse(
            id=response.id,
            tenant=tenant,
            parent=parent_id,
            entries=tuple(_entry_of(span, model_digest) for span in spans),
            body=_encoder.encode(events),
        )
        try:
            await self._store.put_response(stored, self._ttl_s)
        except StoreError as error:
            log.warning("response %s is not stored: %s", response.id, error)
            return False
        return True

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Delete a response. Returns False if it is not found. Raises StoreError."""
        if self._store is None or await self._find(response_id, tenant) is None:
            return False
        await self._store.put_response(
            StoredResponse(id=response_id, tenant=tenant), 0.0
        )  # overwrites the response by one that expires at once
        return True

    async def load_event_stream(self, response_id: str, tenant: str) -> EventStream | None:
        """Return the events of a response. Returns None if it is not found. Raises StoreError."""
        stored = await self._find(response_id, tenant)
        return None if stored is None else EventStream(_events_decoder.decode(stored.body))

    async def load_history(
        self, response_id: str, tenant: str, model_digest: str
    ) -> list[Span] | None:
        """Return the history up to and including a response, as spans that are not tokenized.

        Returns None if one of its responses is not found (it has expired, say), or if the chain of
        parents is too long. Token ids that a model other than `model_digest` sampled are left out,
        so that their items are rendered again. Raises StoreError.
        """
        chain: list[StoredResponse] = []
        next_id: str | None = response_id
        while next_id is not None:
            stored = await self._find(next_id, tenant)
            if stored is None or len(chain) >= HISTORY_DEPTH_MAX:
                return None
            chain.append(stored)
            next_id = stored.parent
        entries = [entry for stored in reversed(chain) for entry in stored.entries]
        spans = [span for entry in entries for span in _spans_of(entry, model_digest)]
        if sum(span.sampled_ids is not None for span in spans) < sum(bool(e.ids) for e in entries):
            log.warning(
                "response %s was sampled from another model: it is rendered again", response_id
            )
        return spans

    async def _find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Find a stored response. Returns None if it is not found or another tenant's."""
        if self._store is None:
            return None
        stored = await self._store.find_response(response_id)
        return stored if stored is not None and stored.tenant == tenant else None


def _entry_of(span: Span, model_digest: str) -> Entry:
    if span.sampled_ids is None:
        return Entry(_encoder.encode(_EntryBody(list(span.items))))
    return Entry(
        _encoder.encode(_EntryBody(list(span.items), span.response_id, model_digest)),
        span.sampled_ids,
    )


def _spans_of(entry: Entry, model_digest: str) -> list[Span]:
    body = _entry_body_decoder.decode(entry.body)
    if body.answer is None or not is_same_model(body.model, model_digest):
        return [Span((item,)) for item in body.items]
    return [Span(tuple(body.items), response_id=body.answer, sampled_ids=entry.ids)]

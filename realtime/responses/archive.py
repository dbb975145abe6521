"""Response archive: finished responses in the store, with input, output and events, for a time.

The history of a stored response is the history of its parent, followed by its own input and output.
Input is rendered again when needed; output is stored with its sampled ids.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine import EffortSetting
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.protocol.events import ResponseEvent
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Response
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.store import Store, StoredResponse, StoreError
from continuo.realtime.store.codec import decode, encode

log = logging.getLogger(__name__)

HISTORY_DEPTH_MAX = 10_000
"""Maximum number of responses in one chain of parents; a longer history is not loaded."""


class _ArchivedSpan(msgspec.Struct, frozen=True, array_like=True):
    """A span, as stored: its items, and the ids that the model with the digest `model` sampled for
    the response `response_id`. Without such ids, the fields after `items` have their defaults."""

    items: tuple[Item, ...]
    sampled_ids: tuple[int, ...] = ()
    response_id: str | None = None
    model: str = ""
    effort: EffortSetting = "default"


_span_decoder = msgspec.msgpack.Decoder(_ArchivedSpan)
_events_decoder = msgspec.msgpack.Decoder(list[ResponseEvent])


class ResponseArchive:
    """The stored responses of all tenants. Without a store, the archive is always empty."""

    def __init__(self, store: Store | None, ttl_s_of: Callable[[str], float]) -> None:
        """`ttl_s_of` returns how long a response of a tenant is kept, in seconds."""
        self._store = store
        self._ttl_s_of = ttl_s_of

    @property
    def is_available(self) -> bool:
        """Whether responses can be stored now, as far as is known. True without a store."""
        return self._store is None or self._store.is_available

    @property
    def epoch(self) -> str:
        """Epoch of the store; empty without one."""
        return "" if self._store is None else self._store.epoch

    async def exists(self, response_id: str, epoch: str) -> bool:
        """Whether a response still exists that was put into the store of this `epoch`: it has not
        expired, and no gateway has deleted it. True if the store cannot know, because it is
        unavailable, or has been emptied or replaced since."""
        if self._store is None or not self._store.is_available or self._store.epoch != epoch:
            return True
        try:
            return await self._store.has_response(response_id)
        except StoreError:
            return True

    async def put(
        self,
        tenant: str,
        parent_id: str | None,
        spans: Sequence[Span],
        response: Response,
        events: list[ResponseEvent],
        model_digest: str,
    ) -> bool:
        """Store a response. Returns False if there is no store. Raises StoreError.

        `spans`: what the response adds to the history of its parent. `model_digest`: digest of the
        model that sampled their token ids.
        """
        if self._store is None:
            return False
        stored = StoredResponse(
            id=response.id,
            tenant=tenant,
            parent=parent_id,
            entries=tuple(encode(_to_archived(span, model_digest)) for span in spans),
            body=encode(events),
        )
        await self._store.put_response(stored, self._ttl_s_of(tenant))
        return True

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Delete a response. Returns False if it is not found. Raises StoreError."""
        if self._store is None or await self._find(response_id, tenant) is None:
            return False
        await self._store.put_response(StoredResponse(id=response_id, tenant=tenant), 0.0)
        return True

    async def load_event_stream(self, response_id: str, tenant: str) -> EventStream | None:
        """Return the events of a response. Returns None if it is not found. Raises StoreError."""
        stored = await self._find(response_id, tenant)
        return None if stored is None else EventStream(decode(_events_decoder, stored.body))

    async def load_input(self, response_id: str, tenant: str) -> tuple[Item, ...] | None:
        """Return the input items of a response: what it added to the history of its parent, without
        its output. Returns None if it is not found. Raises StoreError."""
        stored = await self._find(response_id, tenant)
        if stored is None:
            return None
        archived = [decode(_span_decoder, entry) for entry in stored.entries]
        return tuple(item for span in archived if span.response_id is None for item in span.items)

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
        archived = [decode(_span_decoder, entry) for entry in entries]
        spans = [span for one in archived for span in _to_spans(one, model_digest)]
        sampled_before = sum(one.response_id is not None for one in archived)
        if sum(span.sampled_ids is not None for span in spans) < sampled_before:
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


def _to_archived(span: Span, model_digest: str) -> _ArchivedSpan:
    if span.sampled_ids is None:
        return _ArchivedSpan(span.items)
    return _ArchivedSpan(span.items, span.sampled_ids, span.response_id, model_digest, span.effort)


def _to_spans(archived: _ArchivedSpan, model_digest: str) -> list[Span]:
    if archived.response_id is None or archived.model != model_digest:
        return [Span((item,)) for item in archived.items]
    return [
        Span(
            archived.items,
            response_id=archived.response_id,
            sampled_ids=archived.sampled_ids,
            effort=archived.effort,
        )
    ]

"""SessionWriter: writes one session to the store, and keeps track of what the store has.

Each write makes the stored session equal to the desired one by replacing as few entries as
possible, as `EngineSession` does with the ids in the engine.

A failed write may or may not have taken effect, so the next write repeats its changes. If the store
has lost the session, or its latest changes, the whole session is written again.
"""

import logging
from collections.abc import Callable, Mapping

import msgspec

from continuo.realtime.conversation.tokenization import common_prefix_length
from continuo.realtime.persistence.lease_holder import LeaseHolder
from continuo.realtime.persistence.session_codec import (
    ConversationEntry,
    StoredState,
    encode_entry,
    encode_state,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import (
    DuplicateWrite,
    IdempotencyConflict,
    IdempotentRequest,
    LeaseLost,
    NewSession,
    ResponseCheckpoint,
    SessionDataLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoredEvents,
    StoreError,
    StoreReplaced,
    WriteBatch,
)

log = logging.getLogger(__name__)


class DesiredSession(msgspec.Struct, frozen=True, kw_only=True):
    """The whole session, as it should be in the store after a write."""

    entries: tuple[ConversationEntry, ...]
    settings: GenerationSettings
    epoch: int
    first_offset: int
    """Offset of the oldest event that the event log has."""
    next_offset: int
    """Offset after the last event."""
    encode_events_since: Callable[[int], list[bytes]]
    """Encodes the events from an offset on."""
    started_responses: tuple[ResponseCheckpoint, ...] = ()
    """Checkpoints of the responses that are being generated."""


class SessionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that one write makes besides those of entries and events."""

    is_state_changed: bool = False
    is_epoch_changed: bool = False
    request: IdempotentRequest | None = None
    revoked_request: IdempotentRequest | None = None
    """A request whose outcome was written, but whose change was rolled back. Its outcome is
    removed, so that a retry is executed."""
    started_response: ResponseCheckpoint | None = None
    restarted_response: ResponseCheckpoint | None = None
    """New checkpoint of a response that was started earlier; it replaces the one in the store."""
    ended_response: str | None = None
    """Id of a response that has ended."""


class SessionWriter:
    """Writes one session. Calls must not overlap, except calls of `journal`."""

    def __init__(  # noqa: PLR0913 - what the store already has, by keyword
        self,
        store: Store,
        lease: SessionLease,
        new: NewSession,
        *,
        entries: tuple[ConversationEntry, ...] = (),
        written_offset: int = 0,
        base_offset: int = 0,
        model_digest: str = "",
        replaces_all: bool = False,
        completed_requests: Mapping[str, IdempotentRequest] | None = None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        store: where the session is written.
        lease: as claimed or created; later claims replace it.
        new: used to create the session again if the store has lost it; its `ttl_s`, in seconds, is
            that of each claim.
        entries: entries that the store already has: the whole log, or none.
        written_offset: offset of the first event that the store does not have.
        base_offset: offset of the event that has number 0 in the store.
        model_digest: digest of the model to which the token ids belong.
        replaces_all: the stored token ids belong to another model, and the first write replaces all
            entries, the state and the epoch atomically.
        completed_requests: the completed requests of the client by idempotency key, which are
            restored in a store that has lost them; the caller's live mapping. None: there are none.
        on_replaced: called when another gateway turns out to own the session.
        """
        self._model_digest = model_digest
        self._replaces_all = replaces_all
        self._store = store
        self._new_session = new
        self._lease_holder = LeaseHolder(store, lease, new.ttl_s)
        self.base_offset = base_offset
        self._written_offset = self._possibly_written_offset = written_offset
        """The store has all events before `_written_offset`, and may have those before
        `_possibly_written_offset`."""
        self._confirmed_entries: tuple[ConversationEntry, ...] = entries
        """The leading entries of the stored log that the store certainly has."""
        self._has_unconfirmed_entries = False
        """Whether the store may have further, unknown entries after the confirmed ones."""
        self._unwritten_ends: list[str] = []
        """Ids of responses that the next write marks as ended in the store."""
        self._revoked_keys: set[str] = set()
        """Idempotency keys that the store may have although their requests had no effect."""
        self._has_unconfirmed_write = False
        """Whether a write without a reply may have taken effect."""
        self._needs_full_write = False
        """Whether the store has lost data, so that the next write contains the whole session."""
        self._is_absent = False
        """Whether the store has lost the whole session, so that the next write creates it again."""
        self._is_stopped = False
        self._completed_requests: Mapping[str, IdempotentRequest] = (
            {} if completed_requests is None else completed_requests
        )
        self.on_replaced = on_replaced

    @property
    def lease(self) -> SessionLease:
        """The current lease: a new one after each claim, and when the session is created again."""
        return self._lease_holder.lease

    async def write(self, desired: DesiredSession, changes: SessionChanges) -> None:
        """Write the differences between the stored session and `desired`, and the `changes`,
        atomically. Does nothing after `stop`. Raises StoreError."""
        if self._is_stopped:
            return
        if changes.ended_response is not None:
            self._unwritten_ends.append(changes.ended_response)
        if changes.revoked_request is not None:
            self._revoked_keys.add(changes.revoked_request.key)
        try:
            await self._write_or_recover(desired, changes)
        except BaseException as error:
            if not isinstance(error, IdempotencyConflict):
                self._has_unconfirmed_write = True
                if changes.request is not None:
                    self._revoked_keys.add(changes.request.key)
            if changes.started_response is not None:  # the store may have the checkpoint
                self._unwritten_ends.append(changes.started_response.id)
            raise

    async def _write_or_recover(self, desired: DesiredSession, changes: SessionChanges) -> None:
        if (
            self._needs_full_write
            or self._lease_holder.has_store_lost_fence
            or self._lease_holder.is_of_other_store
            or self._written_offset < desired.first_offset
        ):
            await self._recover(desired)
        try:
            await self._write(desired, changes)
        except (SessionDataLost, StoreReplaced, SessionNotFound) as error:
            log.warning("%s; the whole session is written again", error)
            await self._recover(desired)
            await self._write(desired, changes)

    async def _write(self, desired: DesiredSession, changes: SessionChanges) -> None:
        kept = common_prefix_length(self._confirmed_entries, desired.entries)
        writes_entries = self._has_unconfirmed_entries or not kept == len(
            self._confirmed_entries
        ) == len(desired.entries)
        first_event = min(self._written_offset, desired.next_offset)
        new_events = (
            tuple(desired.encode_events_since(first_event))
            if first_event < desired.next_offset
            else ()
        )
        writes_events = (
            self._needs_full_write or new_events or self._possibly_written_offset > first_event
        )
        overwrites = self._needs_full_write or self._has_unconfirmed_write
        requested_keys = {changes.request.key} if changes.request else set[str]()
        # The key of a retried request is not revoked: an earlier write of the request that
        # arrives late is then a duplicate.
        revoked_keys = self._revoked_keys - requested_keys
        completed = self._completed_requests.values() if self._needs_full_write else ()
        restored = tuple(
            request
            for request in completed
            if request.key not in self._revoked_keys | requested_keys
        )
        batch = WriteBatch(
            kept_entries=kept if writes_entries else None,
            entries=tuple(encode_entry(entry) for entry in desired.entries[kept:])
            if writes_entries
            else (),
            epoch=desired.epoch
            if changes.is_epoch_changed or self._needs_full_write or self._replaces_all
            else None,
            state=self._encode_state(desired)
            if changes.is_state_changed or overwrites or self._replaces_all
            else None,
            request=changes.request,
            revoked_keys=tuple(sorted(revoked_keys)),
            restored_requests=restored,
            ended_responses=tuple(self._unwritten_ends),
            started_responses=(
                *(desired.started_responses if self._needs_full_write else ()),
                *_started_responses(changes),
            ),
            events=StoredEvents(first_event - self.base_offset, new_events)
            if writes_events
            else None,
        )
        if batch == WriteBatch():
            return
        # Set before the call, which may end without a reply: the store then has what it had, or the
        # batch, and only the entries with which both begin are certain. An exception handler that
        # set this afterwards would miss a cancelled call.
        self._confirmed_entries, self._has_unconfirmed_entries, self._written_offset = (
            self._confirmed_entries[:kept],
            writes_entries,
            first_event,
        )
        self._possibly_written_offset = max(self._possibly_written_offset, desired.next_offset)
        is_recreated = self._is_absent
        if is_recreated:
            await self._lease_holder.recreate(self._new_session, batch)
            self._is_absent, written = False, None
        else:
            written = await self._lease_holder.run(lambda lease: self._store.write(lease, batch))
        if self._lease_holder.has_store_lost_fence:
            raise SessionDataLost(self.lease.session, "its fence was older than the lease")
        if isinstance(written, DuplicateWrite):
            # An earlier attempt, which the client saw refused, has stored the key: write the change
            # now, without the key.
            assert changes.request is not None, "only a request has a duplicate"
            self._revoked_keys.discard(changes.request.key)
            await self._write(desired, msgspec.structs.replace(changes, request=None))
            return
        if overwrites and not is_recreated:
            # The new data may be as long as the data it replaced: if the store loses this write and
            # returns to the old data, only a missing fence reveals that. Therefore a new fence is
            # claimed. If it is not granted, the write counts as one without a reply.
            await self._lease_holder.claim()
        self._needs_full_write = self._has_unconfirmed_write = (
            self._lease_holder.has_store_lost_fence
        )
        self._replaces_all = False
        self._confirmed_entries, self._has_unconfirmed_entries = desired.entries, False
        self._written_offset = self._possibly_written_offset = desired.next_offset
        self._revoked_keys -= (
            {*revoked_keys, changes.request.key} if changes.request else revoked_keys
        )
        del self._unwritten_ends[: len(batch.ended_responses)]

    async def _recover(self, desired: DesiredSession) -> None:
        """Recover from data loss in the store: take the lease again, unless the store has lost the
        whole session, and schedule a full rewrite, applied atomically, so that no other gateway
        reads a partial session."""
        self._needs_full_write = True
        found = None
        if not self._is_absent:
            try:
                await self._lease_holder.claim()
                found = await self._store.load(self.lease.session)
            except (SessionNotFound, StoreReplaced):
                self._is_absent = True
        self._lease_holder.has_store_lost_fence = False
        stored = () if found is None else found.running_responses
        started = {checkpoint.id for checkpoint in desired.started_responses}
        self._unwritten_ends = [
            response.checkpoint.id for response in stored if response.checkpoint.id not in started
        ]
        self._confirmed_entries, self._has_unconfirmed_entries = (), True
        self.base_offset = self._written_offset = self._possibly_written_offset = (
            desired.first_offset
        )

    def _encode_state(self, desired: DesiredSession) -> bytes:
        return encode_state(
            StoredState(settings=desired.settings, first=self.base_offset, model=self._model_digest)
        )

    def rewrite_events_from(self, offset: int) -> None:
        """Rewrite the events from `offset` on with the next write."""
        self._written_offset = min(self._written_offset, offset)

    async def find_result(self, request: IdempotentRequest) -> bytes | None:
        """Return the recorded result of a request, or None if the request was not executed before.
        Raises IdempotencyConflict, StoreError."""
        if request.key in self._revoked_keys:
            return None
        try:
            try:
                return await self._find_result(request)
            except SessionDataLost:  # perhaps the store has lost only the fence
                await self._lease_holder.claim()
                return await self._find_result(request)
        except (StoreReplaced, SessionNotFound):
            return None  # other gateways' results are lost; the next write restores our own

    async def _find_result(self, request: IdempotentRequest) -> bytes | None:
        return await self._lease_holder.run(
            lambda lease: self._store.find_result(lease, request), harmless_when_late=True
        )

    async def journal(self, response_id: str, first: int, ids: tuple[int, ...]) -> int:
        """Write sampled token ids of a response; `first` is the offset of the first of them.
        Returns how many token ids of the response are stored. Raises StoreError."""
        return await self._lease_holder.run(
            lambda lease: self._store.journal(lease, response_id, first, ids),
            harmless_when_late=True,
        )

    async def claim(self) -> None:
        """Claim the session under a new fence. Raises StoreError."""
        await self._lease_holder.claim()

    async def extend_deadline(self, ttl_s: float, *, is_parked: bool) -> None:
        """Extend the deadline of the session to `ttl_s` from now, under the current lease. If a
        client resumes the session meanwhile, the deadline set by that claim remains. Raises
        StoreError."""
        await self._store.extend_deadline(self._lease_holder.lease, ttl_s, is_parked=is_parked)

    async def confirm(self) -> None:
        """Confirm that this gateway owns the session. If the store has lost the claim, the session
        is claimed again at once: otherwise the store would accept writes of the previous owner,
        which may resume after a suspension. Raises StoreError."""
        try:
            await self._lease_holder.run(self._store.confirm, harmless_when_late=True)
        except SessionDataLost:
            await self._lease_holder.claim()

    async def check_ownership(self) -> None:
        """Check that no other gateway has taken the session over or deleted it. Without a shared
        store, or while the store cannot say, nothing is checked. Raises LeaseLost."""
        if not self._store.is_shared:
            return
        try:
            await self.confirm()
        except LeaseLost:
            raise
        except StoreError as error:
            log.debug("session %s: the owner is unknown: %s", self.lease.session, error)

    @property
    def is_of_other_store(self) -> bool:
        """Whether the store was replaced by another one, or an empty one, since this session was
        written to it; the next write creates the session again."""
        return self._lease_holder.is_of_other_store

    def stop(self) -> None:
        """Stop writing and claiming."""
        self._is_stopped = True
        self._lease_holder.stop()

    async def delete(self) -> None:
        """Delete the session from the store. Raises StoreError."""
        self._is_stopped = True
        await self._lease_holder.run(self._store.delete)


def _started_responses(changes: SessionChanges) -> tuple[ResponseCheckpoint, ...]:
    responses = (changes.started_response, changes.restarted_response)
    return tuple(checkpoint for checkpoint in responses if checkpoint is not None)

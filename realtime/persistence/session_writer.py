"""SessionWriter: writes one session to the store.

    known       what the store has         a write replaces as few entries as possible
    in doubt    a write got no reply, or   the next write is the whole session, under a new
                the store has lost data    fence, which a late write does not have

A write makes the stored session equal to the desired one, as `EngineSession` does with the ids in
the engine. What the store has is in doubt from the start of each write until its reply.
"""

import contextlib
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
    LogEnd,
    NewSession,
    ResponseCheckpoint,
    SessionDataLost,
    SessionLease,
    SessionNotFound,
    Snapshot,
    Store,
    StoredEvents,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
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


class StoredLog(msgspec.Struct, frozen=True):
    """The entries and events that the store certainly has, and no others."""

    entries: tuple[ConversationEntry, ...] = ()
    next_offset: int = 0
    """Offset after the last event."""
    rewritten_offset: int | None = None
    """Offset of the first event that the next write replaces. None: it replaces none."""

    @property
    def kept_offset(self) -> int:
        """Offset after the last event that the next write keeps."""
        return self.next_offset if self.rewritten_offset is None else self.rewritten_offset


class SessionWriter:
    """Writes one session. Calls must not overlap, except calls of `journal`."""

    def __init__(
        self,
        store: Store,
        lease: SessionLease,
        new: NewSession,
        *,
        stored: StoredLog | None = StoredLog(),  # noqa: B008 - immutable
        base_offset: int = 0,
        model_digest: str = "",
        completed_requests: Mapping[str, IdempotentRequest] | None = None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        store: where the session is written.
        lease: as claimed or created; later claims replace it.
        new: used to create the session again if the store has lost it; its `ttl_s`, in seconds, is
            that of each claim.
        stored: what the store has, nothing of a new session. None: token ids of another model, all
            of which the first write replaces.
        base_offset: offset of the event that has number 0 in the store.
        model_digest: digest of the model to which the token ids belong.
        completed_requests: the completed requests of the client by idempotency key, which are
            restored in a store that has lost them; the caller's live mapping. None: there are none.
        on_replaced: called when another gateway turns out to own the session.
        """
        self._model_digest = model_digest
        self._store = store
        self._new_session = new
        self._lease_holder = LeaseHolder(store, lease, new.ttl_s)
        self._base_offset = base_offset
        self._stored = stored
        """The content of the store. None: it is in doubt."""
        self._revoked_keys: set[str] = set()
        """Idempotency keys that the store may have although their requests had no effect."""
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
        if changes.revoked_request is not None:
            self._revoked_keys.add(changes.revoked_request.key)
        try:
            await self._write_or_recover(desired, changes)
        except IdempotencyConflict:
            raise
        except BaseException:
            if changes.request is not None:
                self._revoked_keys.add(changes.request.key)
            raise

    async def _write_or_recover(self, desired: DesiredSession, changes: SessionChanges) -> None:
        stored = self._stored
        if stored is not None and (
            self._lease_holder.has_store_lost_fence
            or self._lease_holder.is_of_other_store
            or stored.kept_offset < desired.first_offset
        ):
            stored = None
        try:
            await self._write(stored, desired, changes)
        except (SessionDataLost, StoreReplaced, SessionNotFound) as error:
            log.warning("%s; the whole session is written again", error)
            self._stored = None
            await self._write(None, desired, changes)

    async def _write(
        self, stored: StoredLog | None, desired: DesiredSession, changes: SessionChanges
    ) -> None:
        """`stored` None: what the store has is in doubt."""
        is_lost = False
        if stored is not None:
            batch = self._changed_batch(stored, desired, changes)
            if batch == WriteBatch():
                return
        else:
            found = await self._claim_and_load()
            is_lost = found is None
            batch = self._whole_batch(found, desired, changes)
        # An exception handler that set this after the call would miss one that never ends.
        self._stored = None
        written: WriteResult | DuplicateWrite | None = None
        try:
            if is_lost:
                await self._lease_holder.recreate(self._new_session, batch)
            else:
                written = await self._lease_holder.run(
                    lambda lease: self._store.write(lease, batch)
                )
        except StoreUnavailable:
            raise
        except StoreError:  # it has changed nothing
            self._stored = stored
            raise
        if self._lease_holder.has_store_lost_fence:
            raise SessionDataLost(self.lease.session, "its fence was older than the lease")
        if isinstance(written, DuplicateWrite):
            # An earlier attempt, which the client saw refused, has stored the key: write the change
            # now, without the key.
            assert changes.request is not None, "only a request has a duplicate"
            self._revoked_keys.discard(changes.request.key)
            await self._write(stored, desired, msgspec.structs.replace(changes, request=None))
            return
        if stored is None and not is_lost:
            # The new data may be as long as the data it replaced: if the store loses this write and
            # returns to the old data, only a missing fence reveals that. Therefore a new fence is
            # claimed. If it is not granted, the write counts as one without a reply.
            await self._lease_holder.claim()
        if not self._lease_holder.has_store_lost_fence:
            self._stored = StoredLog(desired.entries, desired.next_offset)
        self._revoked_keys.difference_update(batch.revoked_keys)
        if changes.request is not None:
            self._revoked_keys.discard(changes.request.key)

    def _changed_batch(
        self, stored: StoredLog, desired: DesiredSession, changes: SessionChanges
    ) -> WriteBatch:
        kept = common_prefix_length(stored.entries, desired.entries)
        writes_entries = not kept == len(stored.entries) == len(desired.entries)
        first_event = min(stored.kept_offset, desired.next_offset)
        events = self._stored_events(desired, first_event)
        writes_events = events.bodies or first_event < stored.next_offset
        return WriteBatch(
            kept_entries=kept if writes_entries else None,
            entries=tuple(map(encode_entry, desired.entries[kept:])) if writes_entries else (),
            epoch=desired.epoch if changes.is_epoch_changed else None,
            state=self._encode_state(desired) if changes.is_state_changed else None,
            request=changes.request,
            revoked_keys=self._list_revoked_keys(changes),
            ended_responses=() if changes.ended_response is None else (changes.ended_response,),
            started_responses=_started_responses(changes),
            events=events if writes_events else None,
        )

    def _whole_batch(
        self, found: Snapshot | None, desired: DesiredSession, changes: SessionChanges
    ) -> WriteBatch:
        """Return the whole session, as one batch, so that no other gateway reads a part of it.
        `found`: what the store has of the session; None: nothing."""
        stored = () if found is None else [each.checkpoint for each in found.running_responses]
        running = {checkpoint.id for checkpoint in desired.started_responses}
        started = _started_responses(changes)
        unexecuted = set(self._revoked_keys)
        if changes.request is not None:
            unexecuted.add(changes.request.key)
        self._base_offset = desired.first_offset
        return WriteBatch(
            kept_entries=0,
            entries=tuple(map(encode_entry, desired.entries)),
            epoch=desired.epoch,
            state=self._encode_state(desired),
            request=changes.request,
            revoked_keys=self._list_revoked_keys(changes),
            restored_requests=tuple(
                request
                for request in self._completed_requests.values()
                if request.key not in unexecuted
            ),
            ended_responses=tuple(each.id for each in stored if each.id not in running),
            # Those that the store has keep their journaled ids.
            started_responses=(
                *(each for each in desired.started_responses if each not in (*stored, *started)),
                *started,
            ),
            events=self._stored_events(desired, desired.first_offset),
        )

    def _stored_events(self, desired: DesiredSession, first: int) -> StoredEvents:
        new = desired.encode_events_since(first) if first < desired.next_offset else ()
        return StoredEvents(first - self._base_offset, tuple(new))

    def _list_revoked_keys(self, changes: SessionChanges) -> tuple[str, ...]:
        """The key of a retried request is not revoked: an earlier write of the request that arrives
        late is then a duplicate."""
        requested = set[str]() if changes.request is None else {changes.request.key}
        return tuple(sorted(self._revoked_keys - requested))

    async def _claim_and_load(self) -> Snapshot | None:
        """Take the lease again, and load what the store has of the session. Returns None if it has
        lost the whole session. Raises StoreError."""
        found = None
        with contextlib.suppress(SessionNotFound, StoreReplaced):
            await self._lease_holder.claim()
            found = await self._store.load(self.lease.session)
        self._lease_holder.has_store_lost_fence = False
        return found

    def _encode_state(self, desired: DesiredSession) -> bytes:
        return encode_state(
            StoredState(
                settings=desired.settings, first=self._base_offset, model=self._model_digest
            )
        )

    def rewrite_events_from(self, offset: int) -> None:
        """Rewrite the events from `offset` on with the next write, which has events after it."""
        if self._stored is not None and self._stored.kept_offset > offset:
            self._stored = msgspec.structs.replace(self._stored, rewritten_offset=offset)

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

    @property
    def is_in_doubt(self) -> bool:
        """Whether the store may lack a part of the session: a write got no reply yet, or the store
        has lost data. The next write is the whole session."""
        return self._stored is None

    async def confirm(self) -> None:
        """Confirm that this gateway owns the session, and that the store has all that was written;
        if it has not, the session is in doubt. If the store has lost the claim, the session is
        claimed again at once: otherwise the store would accept writes of the previous owner, which
        may resume after a suspension. Raises StoreError."""
        stored, end = self._stored, None
        if stored is not None:
            end = LogEnd(len(stored.entries), stored.next_offset - self._base_offset)
        try:
            await self._lease_holder.run(
                lambda lease: self._store.confirm(lease, end), harmless_when_late=True
            )
        except (SessionNotFound, StoreReplaced):
            self._doubt(stored)
            raise
        except SessionDataLost:
            self._doubt(stored)
            await self._lease_holder.claim()

    def _doubt(self, stored: StoredLog | None) -> None:
        """Forget what the store has, unless that is another log than `stored` by now: a write has
        begun meanwhile, and detects the loss itself."""
        if self._stored is stored:
            self._stored = None

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

"""Ledger: one session in the store, and what we know of it there. Brings it up to a conversation
with the fewest entries, as `strand` does with the engine.

A write that failed may have happened or not: what it would have changed is written again by the
next one. A store that has lost the session, or the end of it, is given it again.
"""

import logging
from collections.abc import Callable, Collection

import msgspec

from continuo.realtime.conversation.tokenization import common_prefix_length
from continuo.realtime.persistence.ownership import Ownership
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
    NewSession,
    ResponseCheckpoint,
    SessionDataLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoredEvents,
    StoreReplaced,
    WriteBatch,
)

log = logging.getLogger(__name__)


class DesiredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it shall be."""

    entries: tuple[ConversationEntry, ...]
    settings: GenerationSettings
    epoch: int
    first_offset: int
    """Number of the oldest record that is known."""
    next_offset: int
    """Number after the last one."""
    encode_events_since: Callable[[int], list[bytes]]
    """The records from this number on."""
    started_responses: tuple[ResponseCheckpoint, ...] = ()
    """Answers being made."""


class SessionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What of it has changed, besides pieces and events."""

    is_state_changed: bool = False
    is_epoch_changed: bool = False
    request: IdempotentRequest | None = None
    revoked_request: IdempotentRequest | None = None
    """This was written, and is taken back."""
    started_response: ResponseCheckpoint | None = None
    restarted_response: ResponseCheckpoint | None = None
    """An answer that began before, whose record in the store is replaced."""
    ended_response: str | None = None


class SessionWriter:
    """Calls for one session come one after the other, but for `journal`."""

    def __init__(
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
    ) -> None:
        """`new`: as it would be made again. `pieces` are in the store, and records up to `told`, of
        which `base` is event 0 there. `model`: digest of the one that the ids are of. `renews`: the
        ids in the store are of another, and the first write puts all entries, the state and the
        epoch in the place of what is there, in one step."""
        self._model_digest = model_digest
        self._replaces_all = replaces_all
        self._store = store
        self._new_session = new
        self._ownership = Ownership(store, lease, new.ttl_s)
        self.base_offset = base_offset
        self._written_offset = self._possibly_written_offset = written_offset
        """Records that the store has; and that it may have."""
        self._confirmed_entries: tuple[ConversationEntry, ...] = entries
        """The beginning of the log that certainly stands."""
        self._has_unconfirmed_entries = False
        """Whether something else may stand behind that."""
        self._unwritten_ends: list[str] = []
        """Answers whose end is not written yet."""
        self._revoked_keys: set[str] = set()
        """Keys that may be written, and have no effect."""
        self._has_unconfirmed_write = False
        """Whether a write that was not answered may have left something there."""
        self._needs_full_write = False
        """Whether the store must be given all of it again."""
        self._is_stopped = False
        self.completed_requests: Callable[[], Collection[IdempotentRequest]] = lambda: ()
        """What a store is given again that has lost it: what was asked here, under the client's
        ids, and done."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when another gateway turns out to own the session."""

    @property
    def lease(self) -> SessionLease:
        """Another one each time it is taken anew, or given again."""
        return self._ownership.lease

    async def write(self, desired: DesiredSession, changes: SessionChanges) -> None:
        """Raises StoreError."""
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
            if changes.started_response is not None:  # it may have been begun all the same
                self._unwritten_ends.append(changes.started_response.id)
            raise

    async def _write_or_recover(self, desired: DesiredSession, changes: SessionChanges) -> None:
        if (
            self._needs_full_write
            or self._ownership.has_store_lost_fence
            or self._written_offset < desired.first_offset
        ):
            await self._recover(desired)
        try:
            await self._write(desired, changes)
        except (SessionDataLost, StoreReplaced, SessionNotFound) as error:
            log.warning("%s: it is written again", error)
            await self._recover(desired)
            await self._write(desired, changes)

    async def _write(self, desired: DesiredSession, changes: SessionChanges) -> None:
        at = common_prefix_length(self._confirmed_entries, desired.entries)
        moved = self._has_unconfirmed_entries or not at == len(self._confirmed_entries) == len(
            desired.entries
        )
        first = min(self._written_offset, desired.next_offset)
        fresh = tuple(desired.encode_events_since(first)) if first < desired.next_offset else ()
        told = self._needs_full_write or fresh or self._possibly_written_offset > first
        over = self._needs_full_write or self._has_unconfirmed_write
        asked = {changes.request.key} if changes.request else set[str]()
        # What is asked again keeps its key: an older write of it that comes late is a repetition.
        undone = self._revoked_keys - asked
        done = self.completed_requests() if self._needs_full_write else ()
        again = tuple(one for one in done if one.key not in self._revoked_keys | asked)
        change = WriteBatch(
            kept_entries=at if moved else None,
            entries=tuple(encode_entry(piece) for piece in desired.entries[at:]) if moved else (),
            epoch=desired.epoch
            if changes.is_epoch_changed or self._needs_full_write or self._replaces_all
            else None,
            state=self._encode_state(desired)
            if changes.is_state_changed or over or self._replaces_all
            else None,
            request=changes.request,
            revoked_keys=tuple(sorted(undone)),
            restored_requests=again,
            ended_responses=tuple(self._unwritten_ends),
            started_responses=(
                *(desired.started_responses if self._needs_full_write else ()),
                *_started_responses(changes),
            ),
            events=StoredEvents(first - self.base_offset, fresh) if told else None,
        )
        if change == WriteBatch():
            return
        self._confirmed_entries, self._has_unconfirmed_entries, self._written_offset = (
            self._confirmed_entries[:at],
            moved,
            first,
        )
        self._possibly_written_offset = max(self._possibly_written_offset, desired.next_offset)
        written = await self._ownership.run(lambda lease: self._store.write(lease, change))
        if self._ownership.has_store_lost_fence:
            raise SessionDataLost(self.lease.session, "it was taken with an older fence")
        if isinstance(written, DuplicateWrite):
            # Whoever asked for it was refused, and asks again: it has no effect yet.
            assert changes.request is not None, "only a key is repeated"
            self._revoked_keys.discard(changes.request.key)
            await self._write(desired, msgspec.structs.replace(changes, request=None))
            return
        if over:
            # Perhaps as long as what it was put over: a store that loses it, but not that, is
            # known by its fence. Where none is given, this write is one that was not answered.
            await self._ownership.claim()
        self._needs_full_write = self._has_unconfirmed_write = self._ownership.has_store_lost_fence
        self._replaces_all = False
        self._confirmed_entries, self._has_unconfirmed_entries = desired.entries, False
        self._written_offset = self._possibly_written_offset = desired.next_offset
        self._revoked_keys -= {*undone, changes.request.key} if changes.request else undone
        del self._unwritten_ends[: len(change.ended_responses)]

    async def _recover(self, desired: DesiredSession) -> None:
        """The store has lost some of it, or all: the next write gives it what is here, in one step,
        so that nobody finds a part of it there."""
        self._needs_full_write = True
        try:
            await self._ownership.claim()
            found = await self._store.load(self.lease.session)
        except (SessionNotFound, StoreReplaced):
            self._ownership.replace_lease(await self._store.create(self._new_session))
            found = None
        self._ownership.has_store_lost_fence = False
        there = () if found is None else found.running_responses
        begun = {one.id for one in desired.started_responses}
        self._unwritten_ends = [
            one.checkpoint.id for one in there if one.checkpoint.id not in begun
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
        """The records from this number on are written again, with the next write."""
        self._written_offset = min(self._written_offset, offset)

    async def find_result(self, request: IdempotentRequest) -> bytes | None:
        """What came of this request, if it was done before. Raises Conflict, StoreError."""
        if request.key in self._revoked_keys:
            return None
        try:
            try:
                return await self._find_result(request)
            except (
                SessionDataLost
            ):  # it has lost our right to the session, and perhaps nothing else
                await self._ownership.claim()
                return await self._find_result(request)
        except (StoreReplaced, SessionNotFound):
            return None  # what was asked elsewhere is lost; the write gives it again what is here

    async def _find_result(self, request: IdempotentRequest) -> bytes | None:
        return await self._ownership.run(
            lambda lease: self._store.find_result(lease, request), harmless_when_late=True
        )

    async def journal(self, response_id: str, first: int, ids: tuple[int, ...]) -> int:
        """Of an answer being made; gives how many ids of it are there. Raises StoreError."""
        return await self._ownership.run(
            lambda lease: self._store.journal(lease, response_id, first, ids),
            harmless_when_late=True,
        )

    async def claim(self) -> None:
        """Under a new fence. Raises StoreError."""
        await self._ownership.claim()

    async def extend_deadline(self, ttl_s: float, *, is_parked: bool) -> None:
        """As it is ours now: if it is taken anew meanwhile, for a client that has come back, that
        stands. Raises StoreError."""
        await self._store.extend_deadline(self._ownership.lease, ttl_s, is_parked=is_parked)

    async def confirm(self) -> None:
        """That it is ours. A store that has forgotten so is told at once: it takes somebody for the
        owner who had it before, and may wake up. Raises StoreError."""
        try:
            await self._ownership.run(self._store.confirm, harmless_when_late=True)
        except SessionDataLost:
            await self._ownership.claim()
        except StoreReplaced:
            self._needs_full_write = True
            raise

    @property
    def needs_full_write(self) -> bool:
        """Whether the store must be given all of it again, as the next write does."""
        return self._needs_full_write

    def stop(self) -> None:
        """Nothing more is written."""
        self._is_stopped = True
        self._ownership.stop()

    async def delete(self) -> None:
        """Raises StoreError."""
        self._is_stopped = True
        await self._ownership.run(self._store.delete)


def _started_responses(changes: SessionChanges) -> tuple[ResponseCheckpoint, ...]:
    return tuple(
        one for one in (changes.started_response, changes.restarted_response) if one is not None
    )

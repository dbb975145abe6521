"""The Store protocol, and the values it takes and returns.

    session    metadata (tenant, secret, owner, fence, epoch, deadline, …) · state
    log        entry 0 │ entry 1 │ …      each: token ids, and a body that says what they are. The
               truth: all else can be rebuilt from it.
    responses  checkpoint │ ids so far    those being generated; an ended one is an entry of the log
    once       key → digest, result       the last idempotency keys, with their recorded outcomes
    events     event n │ n+1 │ …          the last few, for replay: they do not follow from the log

One owner writes. All changes with one cause are one `WriteBatch`, applied atomically. A batch is
declarative ("from entry 3 on the log is this"): after StoreUnavailable it can simply be written
again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """An entry of the log. The store does not interpret `body`."""

    body: bytes
    ids: tuple[int, ...] = ()


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    """Id of one gateway process: never used by another one, nor after a restart. Not empty."""
    tenant: str
    secret: bytes = b""
    """Digest of the resume token, followed by the digest of the client secret that began the
    session, if any. The store sees neither secret."""
    state: bytes = b""
    ttl_s: float


class SessionLease(msgspec.Struct, frozen=True):
    """The right to write a session. `fence` grows with each claim."""

    session: str
    owner: str
    fence: int
    store_epoch: str
    """Epoch of the store that granted the lease."""


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a stored session."""

    id: str
    tenant: str
    secret: bytes
    owner: str
    fence: int
    epoch: int
    """Incremented by the owner when event ids issued before can no longer be resumed from."""
    entry_count: int
    """Number of entries in the log."""
    is_parked: bool
    created_ms: int
    deadline_ms: int
    """Both times by the store's clock, in ms since 1970."""


class ResponseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it was when it started: with the log, enough to resume it elsewhere."""

    id: str
    seed: int
    prompt: int
    """Tokens of the prompt."""
    entry: int | None = None
    """Place of the response in the log; None if it is out of band."""
    body: bytes = b""


class RunningResponse(msgspec.Struct, frozen=True):
    """A response that is being generated, with its ids so far."""

    checkpoint: ResponseCheckpoint
    ids: tuple[int, ...] = ()


class StoredEvents(msgspec.Struct, frozen=True):
    """Events numbered `first_offset`, `first_offset + 1`, … Earlier ones may have been dropped."""

    first_offset: int = 0
    bodies: tuple[bytes, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.bodies)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session, with all that another gateway needs to resume it."""

    metadata: SessionMetadata
    state: bytes
    entries: tuple[Entry, ...]
    running_responses: tuple[RunningResponse, ...]
    events: StoredEvents


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request under an idempotency key: `content` is what was requested, `result` (at most 255
    bytes) is what a retry gets."""

    key: str
    content: bytes
    result: bytes = b""


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change that an owner makes in one atomic step. A field that is None changes nothing."""

    kept_entries: int | None = None
    """The first so many entries of the log stay, `entries` follow them. All of them: an append;
    fewer: a cut. The placeholder of a response is replaced in the same way."""
    entries: tuple[Entry, ...] = ()
    epoch: int | None = None
    state: bytes | None = None
    request: IdempotentRequest | None = None
    revoked_keys: tuple[str, ...] = ()
    """Keys that were written and have no effect after all: removed before `request` is checked."""
    restored_requests: tuple[IdempotentRequest, ...] = ()
    """Requests that were executed before, written again to a store that has lost some; never
    `request`."""
    ended_responses: tuple[str, ...] = ()
    """Responses that are not being generated any more; their ids so far are deleted."""
    started_responses: tuple[ResponseCheckpoint, ...] = ()
    """Responses that are being generated from now on, without ids so far."""
    events: StoredEvents | None = None


class WriteResult(msgspec.Struct, frozen=True):
    entry_count: int
    next_offset: int


class SweepResult(msgspec.Struct, frozen=True):
    examined: int
    """Sessions whose deadline was checked, tombstones included."""
    expired: list[str]
    """Ids of the sessions that were removed."""


class DuplicateWrite(msgspec.Struct, frozen=True):
    """The request was written before, under the same key, with this `result`. Nothing changed."""

    result: bytes


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A finished response that others may continue from (`previous_response_id`), in any session.
    Its history is its parent's, then `entries`."""

    id: str
    tenant: str
    parent: str | None = None
    entries: tuple[Entry, ...] = ()
    body: bytes = b""


class TokenBatch(NamedTuple):
    """Ids [first, first + len) of a response that is being generated."""

    lease: SessionLease
    response_id: str
    first: int
    ids: tuple[int, ...]


class Store(Protocol):
    """A store of sessions and finished responses.

    Every call ends within `TIMEOUT_S`. Each may raise StoreUnavailable and StoreReplaced; those
    that take a lease also SessionNotFound, LeaseLost, SessionEnded and SessionDataLost."""

    @property
    def epoch(self) -> str:
        """The random identity of the store, made when it is first opened. Another epoch means that
        it is another store, or that its data was lost."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether the store accepts writes, as far as is known: the outcome of the last write, or
        of a health probe since."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other gateways write to the store as well."""
        ...

    async def check(self) -> None:
        """Check that the store is available, and still the same one."""
        ...

    async def create(self, new: NewSession) -> SessionLease:
        """Create a session and claim it. Raises SessionExists, SessionEnded."""
        ...

    async def find(self, session: str) -> SessionMetadata | None: ...

    async def load(self, session: str) -> Snapshot | None: ...

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        ttl_s: float,
        expected_fence: int | None = None,
        secret: bytes | None = None,
    ) -> SessionLease:
        """Grant the lease of a session under a new fence.

        `expected_fence`: only if this is still its fence, else raises LeaseLost. `secret`: the
        digest of a new one. Raises SessionNotFound."""
        ...

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        """Apply a batch. Raises IdempotencyConflict."""
        ...

    async def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        """Returns the result that was written under the key of `request`, or None if none was.
        Raises IdempotencyConflict."""
        ...

    async def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        """Write ids [first, first + len) of a response that is being generated. Returns how many
        ids of it are stored. Raises ResponseNotFound."""
        ...

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        """Call `journal` for many responses at once. Returns None for those whose own call would
        raise. Raises StoreUnavailable; then it is unknown which were written."""
        ...

    async def confirm(self, lease: SessionLease) -> None:
        """Returns if the lease still holds; else raises as any call with a lease."""
        ...

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        """Keep the session for at least `ttl_s` from now on, marked as parked or not."""
        ...

    async def delete(self, lease: SessionLease) -> None:
        """Delete the session. A tombstone is kept for `TOMBSTONE_S`, so that no earlier owner can
        create it again. Idempotent."""
        ...

    async def force_delete(self, session: str) -> int:
        """Delete the session, whichever gateway owns it. Returns a fence above all that it had.
        Raises SessionNotFound."""
        ...

    async def sweep(self, limit: int) -> SweepResult:
        """Check up to `limit` sessions that seem overdue, SWEEP_MAX at most, and remove those that
        are. If fewer were examined, no more are overdue."""
        ...

    async def put_response(self, response: StoredResponse, ttl_s: float) -> None: ...

    async def find_response(self, response_id: str) -> StoredResponse | None: ...

    async def aclose(self) -> None: ...

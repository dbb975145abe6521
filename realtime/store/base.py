"""The Store protocol, and the values it takes and returns.

    session    metadata (tenant, secret, owner, fence, epoch, deadline, …) · state
    log        entry 0 │ entry 1 │ …      the source of truth: conversation and KV are rebuilt from
               it
    responses  checkpoint │ ids so far    those being generated; an ended one is an entry of the log
    requests   key → digest, result       under the last idempotency keys, with their outcomes
    events     event n │ n+1 │ …          the last few, for replay; not derivable from the log

Only the owner of a session writes to it. All changes with one cause are one `WriteBatch`, applied
atomically. A batch states the result ("from entry 3 on, the log is this"), so that after
StoreUnavailable the same batch can be written again. State, entries, events and bodies are bytes
that the store does not interpret.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.codec import digest
from continuo.realtime.store.tenants import TenantStore


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    """Id of the owning gateway process; never empty. Each process has a new id, even after a
    restart."""
    tenant: str
    secret: bytes = b""
    """Digest of the resume token, followed by the digest of the client secret that began the
    session, if any. The store sees neither secret."""
    state: bytes = b""
    ttl_s: float


class SessionLease(msgspec.Struct, frozen=True):
    """The right to write a session. `fence` is the fencing token, which grows with each claim."""

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
    """Time at which the session expires. Like `created_ms`, in milliseconds since 1970 by the
    store's clock."""


class ResponseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """State of a response at its start: with the log and the journaled token ids, enough for
    another gateway to resume generation."""

    id: str
    seed: int
    prompt: int
    """Number of tokens in the prompt."""
    entry: int | None = None
    """Index of the response's placeholder in the log; None if the response is out of band."""
    body: bytes = b""


class RunningResponse(msgspec.Struct, frozen=True):
    """A response that is being generated, with the token ids journaled so far."""

    checkpoint: ResponseCheckpoint
    ids: tuple[int, ...] = ()


class StoredEvents(msgspec.Struct, frozen=True):
    """Events numbered `first_offset`, `first_offset + 1`, … Earlier events may have been
    deleted."""

    first_offset: int = 0
    bodies: tuple[bytes, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.bodies)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session, with all that another gateway needs to resume it."""

    metadata: SessionMetadata
    state: bytes
    entries: tuple[bytes, ...]
    running_responses: tuple[RunningResponse, ...]
    events: StoredEvents


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request under an idempotency key. `content_digest`: differs for another request
    under the same key. `result`: the recorded outcome that a retry gets, at most 255 bytes."""

    key: str
    content_digest: bytes
    result: bytes = b""

    @classmethod
    def of(cls, key: str, content: bytes) -> "IdempotentRequest":
        """Make the request with this content, of which only a digest is kept."""
        return cls(key, digest(content))


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes that an owner makes in one atomic step. A field that is None changes
    nothing."""

    kept_entries: int | None = None
    """Number of entries at the beginning of the log that stay; `entries` replace all that follow.
    If all stay, `entries` are appended. The placeholder of a response is replaced in this way too.
    None: the log does not change."""
    entries: tuple[bytes, ...] = ()
    epoch: int | None = None
    state: bytes | None = None
    request: IdempotentRequest | None = None
    revoked_keys: tuple[str, ...] = ()
    """Idempotency keys to remove from the store, before `request` is checked. Their requests took
    no effect, but an earlier batch may have stored the keys."""
    restored_requests: tuple[IdempotentRequest, ...] = ()
    """Requests executed earlier (not `request`), written again because the store may have lost
    them."""
    ended_responses: tuple[str, ...] = ()
    """Ids of responses whose generation has ended; their checkpoints and journaled token ids are
    deleted."""
    started_responses: tuple[ResponseCheckpoint, ...] = ()
    """Checkpoints of responses whose generation begins; no token ids of theirs are journaled
    yet."""
    events: StoredEvents | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the batch may be the content of a whole session."""
        return self.kept_entries == 0 and self.state is not None


class WriteResult(msgspec.Struct, frozen=True):
    entry_count: int
    next_offset: int


class LogEnd(NamedTuple):
    """The end of a stored session, which each change of a session moves."""

    entry_count: int
    next_offset: int
    """Number of the next event."""


class SweepResult(msgspec.Struct, frozen=True):
    examined: int
    """Sessions whose deadline was checked, tombstones included."""
    expired: list[str]
    """Ids of the sessions that were removed."""


class DuplicateWrite(msgspec.Struct, frozen=True):
    """Reply to a batch whose request was written before, under the same key, with this `result`.
    The batch changed nothing."""

    result: bytes


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=keys.LAYOUT):
    """A finished response that new ones may continue (`previous_response_id`), independent of any
    session. Its history is that of the response `parent`, followed by `entries`."""

    id: str
    tenant: str
    parent: str | None = None
    entries: tuple[bytes, ...] = ()
    body: bytes = b""


class TokenBatch(NamedTuple):
    """Token ids of a response that is being generated; `first` is the offset of the first of
    them."""

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
    def server_id(self) -> str:
        """Identity of the server process, as of the last sweep. Another one means a restart, or a
        failover to a replica: the last writes may be lost. Empty: unknown."""
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

    @property
    def tenants(self) -> TenantStore:
        """Usage and limits of tenants, and what the store holds of them."""
        ...

    async def check(self) -> None:
        """Check that the store responds and still has the same epoch; raises if not."""
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
    ) -> SessionLease:
        """Grant the lease of a session under a new fence.

        `ttl_s`: time until the new deadline. `expected_fence`: if given and no longer the fence of
        the session, raises LeaseLost. Raises SessionNotFound."""
        ...

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        """Apply all changes of a batch, or none. Returns DuplicateWrite, without a change, if the
        batch's request was written before under the same idempotency key. Raises
        IdempotencyConflict if the key was used for another request."""
        ...

    async def recreate(
        self, lease: SessionLease, new: NewSession, batch: WriteBatch, *, expected_fence: int
    ) -> SessionLease:
        """Write a whole session again, in one step, after the store has lost it. Grants a lease
        under a fence higher than that of `lease`, the last one before the loss, of this store or
        of the one that it has replaced.

        `new`: as the session was created. `batch`: all of its content. `expected_fence`: that of
        the session in the store, which is replaced; 0: there is none. So a call that takes effect
        late does not replace what was written after it.

        Raises SessionExists or SessionNotFound if the fence is another one by now; SessionEnded;
        LeaseLost if another gateway owns the session, unless that was before `lease` was granted.
        The fence of such an owner is lower, or was lower before the loss if that gateway has
        written the session again as well.
        """
        ...

    async def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        """Return the result recorded under the key of `request`, or None if the key is unknown.
        Raises IdempotencyConflict."""
        ...

    async def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        """Append token ids of a response that is being generated; `first` is the offset of the
        first id. Returns how many ids of the response are stored now. Raises ResponseNotFound."""
        ...

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        """Call `journal` for many responses at once. Returns the result of each, or None where its
        own call would raise. After StoreUnavailable, which batches were written is unknown."""
        ...

    async def confirm(self, lease: SessionLease, end: LogEnd | None = None) -> None:
        """Check that the lease still holds; if not, raise as any call with a lease does. `end`: the
        end that the stored session must have, else SessionDataLost; None: any."""
        ...

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        """Set the deadline of the session to `ttl_s` from now, and record whether it is parked."""
        ...

    async def delete(self, lease: SessionLease) -> None:
        """Delete the session. A tombstone is kept for `TOMBSTONE_S`, so that no earlier owner can
        create it again. Idempotent."""
        ...

    async def force_delete(self, session: str) -> int:
        """Delete the session, whichever gateway owns it. Returns a fence higher than all that the
        session had. Raises SessionNotFound."""
        ...

    async def sweep(self, limit: int) -> SweepResult:
        """Examine up to `limit` sessions (SWEEP_MAX at most) that seem past their deadline, and
        remove those that are. If fewer were examined, no session is past its deadline any more."""
        ...

    async def put_response(self, response: StoredResponse, ttl_s: float) -> None:
        """Store a response for `ttl_s`, in place of the one with its id. 0 deletes that one: it is
        not found from now on."""
        ...

    async def find_response(self, response_id: str) -> StoredResponse | None: ...

    async def has_response(self, response_id: str) -> bool:
        """Whether `find_response` would find the response, which is not loaded."""
        ...

    async def aclose(self) -> None: ...

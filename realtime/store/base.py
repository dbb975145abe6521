"""The Store protocol, and the values it takes and gives.

    session   card (tenant, secret, owner, fence, epoch, position, deadline) · state
    log       entry 0 │ entry 1 │ … │ entry position-1      each: token ids, and bytes that say what
              they are. The truth: all else can be made again from it.
    answers   begun │ ids so far            those being made; an ended one is an entry of the log
    once      key → digest, result          the last ids clients gave, and what came of them
    events    event n │ n+1 │ …             the last few, for replay: what the log cannot tell

One owner writes. All that one cause changes is one `Change`, and happens whole or not at all. A
change says what shall be, not what to do ("from entry 3 on the log is this"): after
StoreUnavailable it can simply be written again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One span of the conversation. `body` is the session's business."""

    body: bytes
    ids: tuple[int, ...] = ()


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    """Names this life of the gateway: never used by another process, nor by the next start. Not
    empty."""
    tenant: str
    secret: bytes = b""
    """Digest of the resume token and, where a client secret began the session, that one's digest
    behind it; the store sees neither."""
    state: bytes = b""
    ttl_s: float


class SessionLease(msgspec.Struct, frozen=True):
    """The right to write. `fence` only grows from owner to owner."""

    session: str
    owner: str
    fence: int
    store_epoch: str
    """Epoch of the store that gave it."""


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A session at a glance."""

    id: str
    tenant: str
    secret: bytes
    owner: str
    fence: int
    epoch: int
    """Stepped by its owner when positions told before mean nothing any more."""
    entry_count: int
    """Entries in the log."""
    is_parked: bool
    created_ms: int
    deadline_ms: int
    """By the store's clock."""


class ResponseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it was when it began: with the log, enough to go on with it elsewhere."""

    id: str
    seed: int
    prompt: int
    """Tokens it answers to."""
    entry: int | None = None
    """Its place in the log; None: made apart from the conversation."""
    body: bytes = b""


class RunningResponse(msgspec.Struct, frozen=True):
    checkpoint: ResponseCheckpoint
    ids: tuple[int, ...] = ()


class StoredEvents(msgspec.Struct, frozen=True):
    """Events numbered `first`, `first + 1`, … Those before `first` may be gone."""

    first_offset: int = 0
    bodies: tuple[bytes, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.bodies)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to go on with a session on another gateway."""

    metadata: SessionMetadata
    state: bytes
    entries: tuple[Entry, ...]
    running_responses: tuple[RunningResponse, ...]
    events: StoredEvents


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A client's id for what it asks. `content` is what it asked, `result` (at most 255 bytes) what
    to answer if it asks again."""

    key: str
    content: bytes
    result: bytes = b""


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner writes in one atomic step. What is None stays."""

    kept_entries: int | None = None
    """The log's first `at` entries stand, `entries` follow. At `position` it is an append; before,
    a cut; an answer is put into its place the same way."""
    entries: tuple[Entry, ...] = ()
    epoch: int | None = None
    state: bytes | None = None
    request: IdempotentRequest | None = None
    revoked_keys: tuple[str, ...] = ()
    """Keys that were written and have no effect after all: they are forgotten, before `once`."""
    restored_requests: tuple[IdempotentRequest, ...] = ()
    """Keys of what was done before, given again to a store that has lost some; not that of
    `once`."""
    ended_responses: tuple[str, ...] = ()
    """Answers that are not being made any more; their ids so far are forgotten."""
    started_responses: tuple[ResponseCheckpoint, ...] = ()
    """Answers that are being made from now on, without ids so far."""
    events: StoredEvents | None = None


class WriteResult(msgspec.Struct, frozen=True):
    entry_count: int
    next_offset: int


class SweepResult(msgspec.Struct, frozen=True):
    examined: int
    """At so many, if what is left of ended sessions is counted as well."""
    expired: list[str]
    """Sessions that are gone now."""


class DuplicateWrite(msgspec.Struct, frozen=True):
    """Was written before, under the same key: `result` is what came of it. Nothing changed now."""

    result: bytes


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A finished response that others may go on from (`previous_response_id`), in any session. Its
    history is its parent's, then `entries`."""

    id: str
    tenant: str
    parent: str | None = None
    entries: tuple[Entry, ...] = ()
    body: bytes = b""


class TokenBatch(NamedTuple):
    """Ids [first, first + len) of an answer being made."""

    lease: SessionLease
    response_id: str
    first: int
    ids: tuple[int, ...]


class Store(Protocol):
    """Every call ends within `TIMEOUT_S`. Each may raise StoreUnavailable and StoreLost; those that
    take a lease also UnknownSession, StaleFence, SessionEnded and SessionBehind."""

    @property
    def epoch(self) -> str:
        """Made once by the first who opens an empty store. Another one is another store."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether the store takes writes, as far as is known: the outcome of the last one, or of a
        health probe since (`pulse`)."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other gateways write to the store as well."""
        ...

    async def check(self) -> None:
        """Is it there, and still the same?"""
        ...

    async def create(self, new: NewSession) -> SessionLease:
        """Raises SessionExists, SessionEnded."""
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
        """Takes the session from whoever has it. `seen`: only if this is its fence still, else it
        raises StaleFence. `secret`: the hash of a new one. Raises UnknownSession."""
        ...

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        """Raises Conflict."""
        ...

    async def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        """The result of what was written under this key; None: nothing was. Raises Conflict."""
        ...

    async def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        """Ids [first, first + len) of an answer being made; gives how many it has now. Raises
        UnknownAnswer."""
        ...

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        """As `journal`, of many answers. None: by itself it would raise. Raises StoreUnavailable,
        where it is not known which were written."""
        ...

    async def confirm(self, lease: SessionLease) -> None:
        """Returns if it still holds."""
        ...

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        """The session lives at least that long from now on: parked without a client, or not."""
        ...

    async def delete(self, lease: SessionLease) -> None:
        """It was never there, but that nobody who had it can bring it back: that it was ended is
        remembered for `ENDED_S`. Closing twice is closing once."""
        ...

    async def force_delete(self, session: str) -> int:
        """Closes it, whoever has it. Gives a fence above all of its own. Raises UnknownSession."""
        ...

    async def sweep(self, limit: int) -> SweepResult:
        """Looks at up to `limit` sessions whose time seems to be over, at SWEEP_MAX at most, and
        removes those of which it is. Fewer looked at than that: there are no more."""
        ...

    async def put_response(self, response: StoredResponse, ttl_s: float) -> None: ...

    async def find_response(self, response_id: str) -> StoredResponse | None: ...

    async def aclose(self) -> None: ...

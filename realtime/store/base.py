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
    hold_s: float


class Lease(msgspec.Struct, frozen=True):
    """The right to write. `fence` only grows from owner to owner."""

    session: str
    owner: str
    fence: int
    store: str
    """Epoch of the store that gave it."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A session at a glance."""

    id: str
    tenant: str
    secret: bytes
    owner: str
    fence: int
    epoch: int
    """Stepped by its owner when positions told before mean nothing any more."""
    position: int
    """Entries in the log."""
    parked: bool
    created_ms: int
    deadline_ms: int
    """By the store's clock."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it was when it began: with the log, enough to go on with it elsewhere."""

    id: str
    seed: int
    prompt: int
    """Tokens it answers to."""
    entry: int | None = None
    """Its place in the log; None: made apart from the conversation."""
    body: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    begun: Begun
    ids: tuple[int, ...] = ()


class Events(msgspec.Struct, frozen=True):
    """Events numbered `first`, `first + 1`, … Those before `first` may be gone."""

    first: int = 0
    bodies: tuple[bytes, ...] = ()

    @property
    def next(self) -> int:
        return self.first + len(self.bodies)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to go on with a session on another gateway."""

    card: Card
    state: bytes
    log: tuple[Entry, ...]
    answers: tuple[Answer, ...]
    events: Events


class Once(msgspec.Struct, frozen=True):
    """A client's id for what it asks. `content` is what it asked, `result` (at most 255 bytes) what
    to answer if it asks again."""

    key: str
    content: bytes
    result: bytes = b""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner writes in one atomic step. What is None stays."""

    at: int | None = None
    """The log's first `at` entries stand, `entries` follow. At `position` it is an append; before,
    a cut; an answer is put into its place the same way."""
    entries: tuple[Entry, ...] = ()
    epoch: int | None = None
    state: bytes | None = None
    once: Once | None = None
    undone: tuple[str, ...] = ()
    """Keys that were written and have no effect after all: they are forgotten, before `once`."""
    again: tuple[Once, ...] = ()
    """Keys of what was done before, given again to a store that has lost some; not that of
    `once`."""
    ends: tuple[str, ...] = ()
    """Answers that are not being made any more; their ids so far are forgotten."""
    begins: tuple[Begun, ...] = ()
    """Answers that are being made from now on, without ids so far."""
    events: Events | None = None


class Written(msgspec.Struct, frozen=True):
    position: int
    next_event: int


class Swept(msgspec.Struct, frozen=True):
    looked: int
    """At so many, if what is left of ended sessions is counted as well."""
    expired: list[str]
    """Sessions that are gone now."""


class Repeated(msgspec.Struct, frozen=True):
    """Was written before, under the same key: `result` is what came of it. Nothing changed now."""

    result: bytes


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A finished response that others may go on from (`previous_response_id`), in any session. Its
    history is its parent's, then `entries`."""

    id: str
    tenant: str
    parent: str | None = None
    entries: tuple[Entry, ...] = ()
    body: bytes = b""


class Spoken(NamedTuple):
    """Ids [first, first + len) of an answer being made."""

    lease: Lease
    answer: str
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
    def there(self) -> bool:
        """Whether the store takes writes, as far as is known: the outcome of the last one, or of a
        health probe since (`pulse`)."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other gateways write to the store as well."""
        ...

    async def check(self) -> None:
        """Is it there, and still the same?"""
        ...

    async def create(self, new: NewSession) -> Lease:
        """Raises SessionExists, SessionEnded."""
        ...

    async def find(self, session: str) -> Card | None: ...

    async def load(self, session: str) -> Snapshot | None: ...

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        hold_s: float,
        seen: int | None = None,
        secret: bytes | None = None,
    ) -> Lease:
        """Takes the session from whoever has it. `seen`: only if this is its fence still, else it
        raises StaleFence. `secret`: the hash of a new one. Raises UnknownSession."""
        ...

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        """Raises Conflict."""
        ...

    async def repeated(self, lease: Lease, once: Once) -> bytes | None:
        """The result of what was written under this key; None: nothing was. Raises Conflict."""
        ...

    async def journal(self, lease: Lease, answer: str, first: int, ids: tuple[int, ...]) -> int:
        """Ids [first, first + len) of an answer being made; gives how many it has now. Raises
        UnknownAnswer."""
        ...

    async def journal_all(self, spoken: Sequence[Spoken]) -> list[int | None]:
        """As `journal`, of many answers. None: by itself it would raise. Raises StoreUnavailable,
        where it is not known which were written."""
        ...

    async def confirm(self, lease: Lease) -> None:
        """Returns if it still holds."""
        ...

    async def hold(self, lease: Lease, for_s: float, *, parked: bool) -> None:
        """The session lives at least that long from now on: parked without a client, or not."""
        ...

    async def close(self, lease: Lease) -> None:
        """It was never there, but that nobody who had it can bring it back: that it was ended is
        remembered for `ENDED_S`. Closing twice is closing once."""
        ...

    async def end(self, session: str) -> int:
        """Closes it, whoever has it. Gives a fence above all of its own. Raises UnknownSession."""
        ...

    async def sweep(self, limit: int) -> Swept:
        """Looks at up to `limit` sessions whose time seems to be over, at SWEEP_MAX at most, and
        removes those of which it is. Fewer looked at than that: there are no more."""
        ...

    async def keep(self, kept: Kept, for_s: float) -> None: ...

    async def kept(self, response: str) -> Kept | None: ...

    async def aclose(self) -> None: ...

"""Ledger: one session in the store, and what we know of it there. Brings it up to a conversation
with the fewest entries, as `strand` does with the engine.

A write that failed may have happened or not: what it would have changed is written again by the
next one. A store that has lost the session, or the end of it, is given it again.
"""

import logging
from collections.abc import Callable

import msgspec

from realtime.protocol.core import Settings
from realtime.session.layout import common_prefix
from realtime.session.stored import Piece, State, entry_of, pack_state
from realtime.session.tenure import Tenure
from realtime.store import (
    Begun,
    Change,
    Conflict,
    Events,
    Lease,
    NewSession,
    Once,
    Repeated,
    SessionBehind,
    Store,
    StoreLost,
    UnknownSession,
)

log = logging.getLogger(__name__)


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it shall be."""

    pieces: tuple[Piece, ...]
    settings: Settings
    epoch: int
    first: int
    """Number of the oldest record that is known."""
    next: int
    """Number after the last one."""
    events: Callable[[int], list[bytes]]
    """The records from this number on."""
    begun: tuple[Begun, ...] = ()
    """Answers being made."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What of it has changed, besides pieces and events."""

    state: bool = False
    epoch: bool = False
    once: Once | None = None
    undone: Once | None = None
    """This was written, and is taken back."""
    begin: Begun | None = None
    end: str | None = None


class Ledger:
    """Calls for one session come one after the other, but for `journal`."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        new: NewSession,
        *,
        pieces: tuple[Piece, ...] = (),
        told: int = 0,
        base: int = 0,
    ) -> None:
        """`new`: as it would be made again. `pieces` are in the store, and records up to `told`, of
        which `base` is event 0 there."""
        self._store = store
        self._new = new
        self._tenure = Tenure(store, lease, new.hold_s)
        self.base = base
        self._told = self._maybe = told
        """Records that the store has; and that it may have."""
        self._sure: tuple[Piece, ...] = pieces
        """The beginning of the log that certainly stands."""
        self._ends: list[str] = []
        """Answers whose end is not written yet."""
        self._undone: set[str] = set()
        """Keys that may be written, and have no effect."""
        self._unsure_state = False
        """Whether other settings may stand there."""
        self._lost = False
        self._left = False
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when another gateway turns out to own the session."""

    @property
    def lease(self) -> Lease:
        """Another one each time it is taken anew, or given again."""
        return self._tenure.lease

    async def write(self, whole: Whole, news: News) -> None:
        """Raises StoreError."""
        if self._left:
            return
        if news.end is not None:
            self._ends.append(news.end)
        if news.undone is not None:
            self._undone.add(news.undone.key)
        try:
            await self._write_or_give(whole, news)
        except BaseException as error:
            if news.once is not None and not isinstance(error, Conflict):
                self._undone.add(news.once.key)
            self._unsure_state |= news.state
            if news.begin is not None:  # it may have been begun all the same
                self._ends.append(news.begin.id)
            raise

    async def _write_or_give(self, whole: Whole, news: News) -> None:
        if self._lost or self._told < whole.first:
            await self._give_again(whole)
        try:
            await self._write(whole, news)
        except (SessionBehind, StoreLost, UnknownSession) as error:
            log.warning("%s: it is written again", error)
            await self._give_again(whole)
            await self._write(whole, news)

    async def _write(self, whole: Whole, news: News) -> None:
        at = common_prefix(self._sure, whole.pieces)
        moved = not at == len(self._sure) == len(whole.pieces)
        first = min(self._told, whole.next)
        fresh = tuple(whole.events(first)) if first < whole.next else ()
        # What is asked again keeps its key: an older write of it that comes late is a repetition.
        undone = self._undone - ({news.once.key} if news.once else set())
        change = Change(
            at=at if moved else None,
            entries=tuple(entry_of(piece) for piece in whole.pieces[at:]) if moved else (),
            epoch=whole.epoch if news.epoch else None,
            state=self._state(whole) if news.state or self._unsure_state else None,
            once=news.once,
            undone=tuple(sorted(undone)),
            begin=news.begin,
            ends=tuple(self._ends),
            events=Events(first - self.base, fresh) if fresh or self._maybe > first else None,
        )
        if change == Change():
            return
        self._sure, self._told = self._sure[:at], first
        self._maybe = max(self._maybe, whole.next)
        written = await self._tenure.do(lambda lease: self._store.write(lease, change))
        if isinstance(written, Repeated):
            # Whoever asked for it was refused, and asks again: it has no effect yet.
            assert news.once is not None, "only a key is repeated"
            self._undone.discard(news.once.key)
            await self._write(whole, msgspec.structs.replace(news, once=None))
            return
        self._sure = whole.pieces
        self._told = self._maybe = whole.next
        self._unsure_state = False
        self._undone -= {*undone, news.once.key} if news.once else undone
        del self._ends[: len(change.ends)]

    async def _give_again(self, whole: Whole) -> None:
        """The store has lost it: it is what is here."""
        self._lost = True
        try:
            await self._tenure.take()
        except (UnknownSession, StoreLost):
            self._tenure.given(await self._store.create(self._new))
        self._ends, self._sure = [], ()
        self.base = self._told = self._maybe = whole.first
        emptied = Change(at=0, state=self._state(whole), epoch=whole.epoch, events=Events())
        for change in (emptied, *(Change(begin=begun) for begun in whole.begun)):
            await self._tenure.do(lambda lease, change=change: self._store.write(lease, change))
        self._lost = False

    def _state(self, whole: Whole) -> bytes:
        return pack_state(State(settings=whole.settings, first=self.base))

    def retell(self, number: int) -> None:
        """The records from this number on are written again, with the next write."""
        self._told = min(self._told, number)

    async def repeated(self, once: Once) -> bytes | None:
        """What came of this request, if it was done before. Raises Conflict, StoreError."""
        if once.key in self._undone:
            return None
        return await self._tenure.do(
            lambda lease: self._store.repeated(lease, once), harmless_when_late=True
        )

    async def journal(self, answer: str, first: int, ids: tuple[int, ...]) -> int:
        """Of an answer being made; gives how many ids of it are there. Raises StoreError."""
        return await self._tenure.do(
            lambda lease: self._store.journal(lease, answer, first, ids), harmless_when_late=True
        )

    async def take(self) -> None:
        """Under a new fence. Raises StoreError."""
        await self._tenure.take()

    async def hold(self, for_s: float, *, parked: bool) -> None:
        """Raises StoreError."""
        await self._tenure.do(lambda lease: self._store.hold(lease, for_s, parked=parked))

    async def confirm(self) -> None:
        """Raises StoreError."""
        await self._tenure.do(self._store.confirm, harmless_when_late=True)

    def leave(self) -> None:
        """Nothing more is written."""
        self._left = True
        self._tenure.leave()

    async def close(self) -> None:
        """Raises StoreError."""
        self._left = True
        await self._tenure.do(self._store.close)

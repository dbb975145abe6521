"""Ledger: one session in the store, and what we know of it there. Brings it up to a conversation
with the fewest entries, as `strand` does with the engine.

A write that failed may have happened or not: what it would have changed is written again by the
next one. A store that has lost the session, or the end of it, is given it again.
"""

import logging
from collections.abc import Callable, Collection

import msgspec

from continuo.realtime.conversation.tokenization import common_prefix
from continuo.realtime.persistence.ownership import Tenure
from continuo.realtime.persistence.session_codec import Piece, State, entry_of, pack_state
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.store import (
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
    again: Begun | None = None
    """An answer that began before, whose record in the store is replaced."""
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
        model: str = "",
        renews: bool = False,
    ) -> None:
        """`new`: as it would be made again. `pieces` are in the store, and records up to `told`, of
        which `base` is event 0 there. `model`: digest of the one that the ids are of. `renews`: the
        ids in the store are of another, and the first write puts all entries, the state and the
        epoch in the place of what is there, in one step."""
        self._model = model
        self._renews = renews
        self._store = store
        self._new = new
        self._tenure = Tenure(store, lease, new.hold_s)
        self.base = base
        self._told = self._maybe = told
        """Records that the store has; and that it may have."""
        self._sure: tuple[Piece, ...] = pieces
        """The beginning of the log that certainly stands."""
        self._more = False
        """Whether something else may stand behind that."""
        self._ends: list[str] = []
        """Answers whose end is not written yet."""
        self._undone: set[str] = set()
        """Keys that may be written, and have no effect."""
        self._unsure = False
        """Whether a write that was not answered may have left something there."""
        self._lost = False
        """Whether the store must be given all of it again."""
        self._left = False
        self.done: Callable[[], Collection[Once]] = lambda: ()
        """What a store is given again that has lost it: what was asked here, under the client's
        ids, and done."""
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
            if not isinstance(error, Conflict):
                self._unsure = True
                if news.once is not None:
                    self._undone.add(news.once.key)
            if news.begin is not None:  # it may have been begun all the same
                self._ends.append(news.begin.id)
            raise

    async def _write_or_give(self, whole: Whole, news: News) -> None:
        if self._lost or self._tenure.lost or self._told < whole.first:
            await self._take_again(whole)
        try:
            await self._write(whole, news)
        except (SessionBehind, StoreLost, UnknownSession) as error:
            log.warning("%s: it is written again", error)
            await self._take_again(whole)
            await self._write(whole, news)

    async def _write(self, whole: Whole, news: News) -> None:
        at = common_prefix(self._sure, whole.pieces)
        moved = self._more or not at == len(self._sure) == len(whole.pieces)
        first = min(self._told, whole.next)
        fresh = tuple(whole.events(first)) if first < whole.next else ()
        told = self._lost or fresh or self._maybe > first
        over = self._lost or self._unsure
        asked = {news.once.key} if news.once else set[str]()
        # What is asked again keeps its key: an older write of it that comes late is a repetition.
        undone = self._undone - asked
        done = self.done() if self._lost else ()
        again = tuple(one for one in done if one.key not in self._undone | asked)
        change = Change(
            at=at if moved else None,
            entries=tuple(entry_of(piece) for piece in whole.pieces[at:]) if moved else (),
            epoch=whole.epoch if news.epoch or self._lost or self._renews else None,
            state=self._state(whole) if news.state or over or self._renews else None,
            once=news.once,
            undone=tuple(sorted(undone)),
            again=again,
            ends=tuple(self._ends),
            begins=(*(whole.begun if self._lost else ()), *_begun(news)),
            events=Events(first - self.base, fresh) if told else None,
        )
        if change == Change():
            return
        self._sure, self._more, self._told = self._sure[:at], moved, first
        self._maybe = max(self._maybe, whole.next)
        written = await self._tenure.do(lambda lease: self._store.write(lease, change))
        if self._tenure.lost:
            raise SessionBehind(self.lease.session, "it was taken with an older fence")
        if isinstance(written, Repeated):
            # Whoever asked for it was refused, and asks again: it has no effect yet.
            assert news.once is not None, "only a key is repeated"
            self._undone.discard(news.once.key)
            await self._write(whole, msgspec.structs.replace(news, once=None))
            return
        if over:
            # Perhaps as long as what it was put over: a store that loses it, but not that, is
            # known by its fence. Where none is given, this write is one that was not answered.
            await self._tenure.take()
        self._lost = self._unsure = self._tenure.lost
        self._renews = False
        self._sure, self._more = whole.pieces, False
        self._told = self._maybe = whole.next
        self._undone -= {*undone, news.once.key} if news.once else undone
        del self._ends[: len(change.ends)]

    async def _take_again(self, whole: Whole) -> None:
        """The store has lost some of it, or all: the next write gives it what is here, in one step,
        so that nobody finds a part of it there."""
        self._lost = True
        try:
            await self._tenure.take()
            found = await self._store.load(self.lease.session)
        except (UnknownSession, StoreLost):
            self._tenure.given(await self._store.create(self._new))
            found = None
        self._tenure.lost = False
        there = () if found is None else found.answers
        begun = {one.id for one in whole.begun}
        self._ends = [one.begun.id for one in there if one.begun.id not in begun]
        self._sure, self._more = (), True
        self.base = self._told = self._maybe = whole.first

    def _state(self, whole: Whole) -> bytes:
        return pack_state(State(settings=whole.settings, first=self.base, model=self._model))

    def retell(self, number: int) -> None:
        """The records from this number on are written again, with the next write."""
        self._told = min(self._told, number)

    async def repeated(self, once: Once) -> bytes | None:
        """What came of this request, if it was done before. Raises Conflict, StoreError."""
        if once.key in self._undone:
            return None
        try:
            try:
                return await self._asked(once)
            except SessionBehind:  # it has lost our right to the session, and perhaps nothing else
                await self._tenure.take()
                return await self._asked(once)
        except (StoreLost, UnknownSession):
            return None  # what was asked elsewhere is lost; the write gives it again what is here

    async def _asked(self, once: Once) -> bytes | None:
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
        """As it is ours now: if it is taken anew meanwhile, for a client that has come back, that
        stands. Raises StoreError."""
        await self._store.hold(self._tenure.lease, for_s, parked=parked)

    async def confirm(self) -> None:
        """That it is ours. A store that has forgotten so is told at once: it takes somebody for the
        owner who had it before, and may wake up. Raises StoreError."""
        try:
            await self._tenure.do(self._store.confirm, harmless_when_late=True)
        except SessionBehind:
            await self._tenure.take()
        except StoreLost:
            self._lost = True
            raise

    @property
    def lost(self) -> bool:
        """Whether the store must be given all of it again, as the next write does."""
        return self._lost

    def leave(self) -> None:
        """Nothing more is written."""
        self._left = True
        self._tenure.leave()

    async def close(self) -> None:
        """Raises StoreError."""
        self._left = True
        await self._tenure.do(self._store.close)


def _begun(news: News) -> tuple[Begun, ...]:
    return tuple(one for one in (news.begin, news.again) if one is not None)

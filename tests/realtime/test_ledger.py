"""A write that was not answered has been done or not: what is written next stands either way."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from continuo.realtime.persistence.session_codec import Piece, Place, Words, entry_of
from continuo.realtime.persistence.session_writer import Ledger, News, Whole
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.store import (
    Change,
    Conflict,
    Lease,
    Once,
    Repeated,
    StoreUnavailable,
    Written,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.realtime.store.making import fresh_session

A, B, C, PLACE = Words("a"), Words("b"), Words("c"), Place("resp_1")
LOGS: tuple[tuple[Piece, ...], ...] = ((A,), (A, B), (A, C), (A, PLACE), (A, B, C), (C, B))


class Unanswering(SqliteStore):
    """`lose`: the next write is done or not, and nobody hears of it."""

    lose: bool | None = None
    claims: int | None = None
    """So many are answered, one is not."""

    async def claim(self, *args: Any, **options: Any) -> Lease:
        if self.claims is not None:
            self.claims -= 1
            if self.claims < 0:
                self.claims = None
                raise StoreUnavailable("no answer")
        return await super().claim(*args, **options)

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        lose, self.lose = self.lose, None
        if lose is not False:
            written = await super().write(lease, change)
            if lose is None:
                return written
        raise StoreUnavailable("no answer")


@pytest.fixture
async def store() -> AsyncIterator[Unanswering]:
    store = await Unanswering.open(None, "normal")
    yield store
    await store.aclose()


def whole(pieces: tuple[Piece, ...], *events: bytes) -> Whole:
    return Whole(
        pieces=pieces,
        settings=Settings(),
        epoch=0,
        first=0,
        next=len(events),
        events=lambda number: [*events[number:]],
    )


@pytest.mark.parametrize("done", [True, False], ids=["done", "lost"])
async def test_the_log_is_what_is_written_next(store: Unanswering, done: bool) -> None:
    for before, meant, after in product(LOGS, repeat=3):
        if before == meant:
            continue  # nothing is written
        new = fresh_session()
        ledger = Ledger(store, await store.create(new), new)
        await ledger.write(whole(before), News())
        store.lose = done
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole(meant), News())
        await ledger.write(whole(after), News())
        found = await store.load(new.id)
        assert found is not None
        assert found.log == tuple(map(entry_of, after)), f"{before} {meant} {after}"


async def test_a_write_behind_which_no_fence_was_given_was_not_answered(
    store: Unanswering,
) -> None:
    """What it told is not told, and what is told in its place is written."""
    new = fresh_session()
    ledger = Ledger(store, await store.create(new), new)
    await ledger.write(whole((A,), b"A"), News())
    for before in (False, True):
        store.lose = before
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole((A, B), b"A", b"B"), News())
        store.claims = 1
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole((A, PLACE), b"A", b"place"), News())
        await ledger.write(whole((A, C), b"A", b"C"), News())
        found = await store.load(new.id)
        assert found is not None
        assert found.log == (entry_of(A), entry_of(C))
        assert found.events.bodies == (b"A", b"C")


async def test_what_is_refused_leaves_the_log_as_it_was(store: Unanswering) -> None:
    new = fresh_session()
    ledger = Ledger(store, await store.create(new), new)
    await ledger.write(whole((A, B)), News(once=Once("key", b"one")))
    with pytest.raises(Conflict):
        await ledger.write(whole((A,)), News(once=Once("key", b"other")))
    await ledger.write(whole((A,)), News(once=Once("another", b"other")))
    found = await store.load(new.id)
    assert found is not None
    assert found.log == (entry_of(A),)

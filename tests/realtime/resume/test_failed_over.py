"""A store that has lost the last of what it had confirmed, as a replica has that takes its place:
whoever has the session notices, also where the log is as long as it was, and gives it again."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import Piece, Words, entry_of
from continuo.realtime.persistence.session_writer import Ledger, News, Whole
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.idempotency_keys import Requests
from continuo.realtime.store import (
    Change,
    Lease,
    Once,
    Repeated,
    StaleFence,
    StoreUnavailable,
    Written,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.realtime.resume.returning import Client, resumed
from tests.realtime.store.making import fresh_session
from tests.support.engines import Bench

A, B, C, D = map(Words, "abcd")


class Replicated(SqliteStore):
    """`lose`: the next write is done or not, and nobody hears of it. `copy_first`: the replica has
    all that was before the next write."""

    file: Path
    replica: Path
    lose: bool | None = None
    copy_first = False

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        if self.copy_first:
            self.copy()
            self.copy_first = False
        lose, self.lose = self.lose, None
        if lose is not False:
            written = await super().write(lease, change)
            if lose is None:
                return written
        raise StoreUnavailable("no answer")

    def copy(self) -> None:
        _copy(self.file, self.replica)

    def fail_over(self) -> None:
        """What was confirmed since is lost."""
        _copy(self.replica, self.file)


def _copy(one: Path, other: Path) -> None:
    with closing(sqlite3.connect(one)) as source, closing(sqlite3.connect(other)) as target:
        source.backup(target)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Replicated]:
    store = await Replicated.open(tmp_path / "store", "normal")
    store.file, store.replica = tmp_path / "store", tmp_path / "replica"
    yield store
    await store.aclose()


@pytest.fixture
async def ledger(store: Replicated) -> Ledger:
    new = fresh_session()
    ledger = Ledger(store, await store.create(new), new)
    await ledger.write(whole(A), News())
    return ledger


def whole(*pieces: Piece) -> Whole:
    return Whole(
        pieces=pieces, settings=Settings(), epoch=0, first=0, next=0, events=lambda number: []
    )


async def check(store: Replicated, ledger: Ledger, *pieces: Piece) -> None:
    found = await store.load(ledger.lease.session)
    assert found is not None
    assert found.log == tuple(map(entry_of, pieces))


async def test_it_is_noticed_by_who_is_in_doubt_about_a_call(
    store: Replicated, ledger: Ledger
) -> None:
    """They take a new fence, and find an older one than theirs."""
    await ledger.write(whole(A, B), News())
    store.copy()
    await ledger.take()
    await ledger.write(whole(A, C), News())
    store.lose = False
    with pytest.raises(StoreUnavailable):
        await ledger.write(whole(A, C, B), News())
    store.fail_over()
    await ledger.write(whole(A, C, D), News())
    await check(store, ledger, A, C, D)


async def test_it_is_noticed_where_a_write_was_put_over_one_that_was_not_answered(
    store: Replicated, ledger: Ledger
) -> None:
    """The one that was not answered has come back in its place, as long as it was."""
    store.lose = True
    with pytest.raises(StoreUnavailable):
        await ledger.write(whole(A, B), News())
    store.copy_first = True
    await ledger.write(whole(A, C), News())
    store.fail_over()
    await check(store, ledger, A, B)
    await ledger.write(whole(A, C, D), News())
    await check(store, ledger, A, C, D)


async def test_what_was_asked_elsewhere_is_asked_again_where_only_the_right_to_it_was_lost(
    store: Replicated, ledger: Ledger
) -> None:
    """A store that has lost a change of hands knows the requests from before."""
    once = Once("event_1", b"respond", b"resp_1")
    await ledger.write(whole(A, B), News(once=once))
    store.copy()
    new = msgspec.structs.replace(fresh_session(), id=ledger.lease.session)
    other = Ledger(store, await store.claim(new.id, "gate-2", hold_s=60), new, pieces=(A, B))
    store.fail_over()
    assert await other.repeated(once) == b"resp_1"
    await other.write(whole(A, C), News())
    await check(store, other, A, C)


async def test_what_was_asked_here_is_known_again_to_a_store_that_has_lost_it(
    store: Replicated, ledger: Ledger
) -> None:
    """Else it would be done again for a client that asks again elsewhere."""
    requests = Requests(ledger, all_here=True)
    store.copy()
    once = Once("event_1", b"respond", b"resp_1")
    await ledger.write(whole(A, B), News(once=once))
    requests.done(once)
    store.fail_over()
    await ledger.write(whole(A, B, C), News(once=Once("event_2", b"append")))
    await check(store, ledger, A, B, C)
    assert await store.repeated(ledger.lease, once) == b"resp_1"
    await ledger.write(whole(A, B, C, D), News())
    assert await store.repeated(ledger.lease, once) == b"resp_1"


async def test_who_had_it_before_is_kept_out_by_a_look(store: Replicated) -> None:
    """The store takes them for the owner again, and they may sleep."""
    new = fresh_session()
    asleep = await store.create(new)
    store.copy()
    ledger = Ledger(store, await store.claim(new.id, "gate-2", hold_s=60), new)
    store.fail_over()
    await store.confirm(asleep)
    await ledger.confirm()
    with pytest.raises(StaleFence):
        await store.confirm(asleep)


async def test_a_lost_epoch_does_not_come_twice(store: Replicated, bench: Bench) -> None:
    """Positions that were told in it mean nothing in the next."""
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, Settings(), Limits(), store)
    client = Client(registry)
    client.connect()
    await client.socket.until("session.created")
    await client.drop()
    client.take()
    store.copy()
    epochs: list[str] = []
    for _ in range(2):
        await registry._forget(registry._sessions[client.session_id])
        store.fail_over()
        await asyncio.sleep(0.05)  # claims of one moment are numbered ahead of the clock
        client.resume("event_elsewhere_0")
        await client.socket.until("session.updated")
        resume = resumed(client.socket)
        assert resume["resumed"] == "snapshot"
        epochs.append(resume["epoch"])
        await client.drop()
    await registry.aclose()
    assert len({*epochs}) == 2

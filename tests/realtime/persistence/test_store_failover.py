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
from continuo.realtime.persistence.session_codec import ConversationEntry, DraftPiece, encode_entry
from continuo.realtime.persistence.session_writer import (
    DesiredSession,
    SessionChanges,
    SessionWriter,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.store import (
    DuplicateWrite,
    IdempotentRequest,
    OwnershipLost,
    SessionLease,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.engines import Bench
from tests.support.resuming import Client, resumed
from tests.support.store_records import fresh_session

A, B, C, D = map(DraftPiece, "abcd")


class Replicated(SqliteStore):
    """`lose`: the next write is done or not, and nobody hears of it. `copy_first`: the replica has
    all that was before the next write."""

    file: Path
    replica: Path
    lose: bool | None = None
    copy_first = False

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        if self.copy_first:
            self.copy()
            self.copy_first = False
        lose, self.lose = self.lose, None
        if lose is not False:
            written = await super().write(lease, batch)
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
async def ledger(store: Replicated) -> SessionWriter:
    new = fresh_session()
    ledger = SessionWriter(store, await store.create(new), new)
    await ledger.write(whole(A), SessionChanges())
    return ledger


def whole(*pieces: ConversationEntry) -> DesiredSession:
    return DesiredSession(
        entries=pieces,
        settings=GenerationSettings(),
        epoch=0,
        first_offset=0,
        next_offset=0,
        encode_events_since=lambda number: [],
    )


async def check(store: Replicated, ledger: SessionWriter, *pieces: ConversationEntry) -> None:
    found = await store.load(ledger.lease.session)
    assert found is not None
    assert found.entries == tuple(map(encode_entry, pieces))


async def test_it_is_noticed_by_who_is_in_doubt_about_a_call(
    store: Replicated, ledger: SessionWriter
) -> None:
    """They take a new fence, and find an older one than theirs."""
    await ledger.write(whole(A, B), SessionChanges())
    store.copy()
    await ledger.claim()
    await ledger.write(whole(A, C), SessionChanges())
    store.lose = False
    with pytest.raises(StoreUnavailable):
        await ledger.write(whole(A, C, B), SessionChanges())
    store.fail_over()
    await ledger.write(whole(A, C, D), SessionChanges())
    await check(store, ledger, A, C, D)


async def test_it_is_noticed_where_a_write_was_put_over_one_that_was_not_answered(
    store: Replicated, ledger: SessionWriter
) -> None:
    """The one that was not answered has come back in its place, as long as it was."""
    store.lose = True
    with pytest.raises(StoreUnavailable):
        await ledger.write(whole(A, B), SessionChanges())
    store.copy_first = True
    await ledger.write(whole(A, C), SessionChanges())
    store.fail_over()
    await check(store, ledger, A, B)
    await ledger.write(whole(A, C, D), SessionChanges())
    await check(store, ledger, A, C, D)


async def test_what_was_asked_elsewhere_is_asked_again_where_only_the_right_to_it_was_lost(
    store: Replicated, ledger: SessionWriter
) -> None:
    """A store that has lost a change of hands knows the requests from before."""
    once = IdempotentRequest("event_1", b"respond", b"resp_1")
    await ledger.write(whole(A, B), SessionChanges(request=once))
    store.copy()
    new = msgspec.structs.replace(fresh_session(), id=ledger.lease.session)
    other = SessionWriter(store, await store.claim(new.id, "gate-2", ttl_s=60), new, entries=(A, B))
    store.fail_over()
    assert await other.find_result(once) == b"resp_1"
    await other.write(whole(A, C), SessionChanges())
    await check(store, other, A, C)


async def test_what_was_asked_here_is_known_again_to_a_store_that_has_lost_it(
    store: Replicated, ledger: SessionWriter
) -> None:
    """Else it would be done again for a client that asks again elsewhere."""
    requests = IdempotencyKeys(ledger, is_complete=True)
    store.copy()
    once = IdempotentRequest("event_1", b"respond", b"resp_1")
    await ledger.write(whole(A, B), SessionChanges(request=once))
    requests.record(once)
    store.fail_over()
    await ledger.write(
        whole(A, B, C), SessionChanges(request=IdempotentRequest("event_2", b"append"))
    )
    await check(store, ledger, A, B, C)
    assert await store.find_result(ledger.lease, once) == b"resp_1"
    await ledger.write(whole(A, B, C, D), SessionChanges())
    assert await store.find_result(ledger.lease, once) == b"resp_1"


async def test_who_had_it_before_is_kept_out_by_a_look(store: Replicated) -> None:
    """The store takes them for the owner again, and they may sleep."""
    new = fresh_session()
    asleep = await store.create(new)
    store.copy()
    ledger = SessionWriter(store, await store.claim(new.id, "gate-2", ttl_s=60), new)
    store.fail_over()
    await store.confirm(asleep)
    await ledger.confirm()
    with pytest.raises(OwnershipLost):
        await store.confirm(asleep)


async def test_a_lost_epoch_does_not_come_twice(store: Replicated, bench: Bench) -> None:
    """Positions that were told in it mean nothing in the next."""
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, GenerationSettings(), Limits(), store)
    client = Client(registry)
    client.connect()
    await client.socket.until("session.created")
    await client.drop()
    client.take()
    store.copy()
    epochs: list[str] = []
    for _ in range(2):
        await registry._unload_and_wait(registry._sessions[client.session_id])
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

"""Tests of stores that another version has written: an older one is migrated, also if the process
is killed meanwhile, and a newer one is refused by name."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.store import (
    DuplicateWrite,
    IdempotencyConflict,
    IdempotentRequest,
    LeaseLost,
    NewerLayout,
    ResponseCheckpoint,
    SessionDataLost,
    SessionLease,
    Snapshot,
    StoredResponse,
    StoreUnusable,
    WriteBatch,
    keys,
    layout_v1,
    open_store,
)
from continuo.realtime.store.codec import digest, pack_ids
from continuo.realtime.store.redis.store import RedisStore
from continuo.realtime.store.sqlite.file import connect
from tests.frozen import store as frozen
from tests.support import layout_1
from tests.support.redis_process import RedisProcess
from tests.support.store_records import append_entries, make_entry, new_session

pytestmark = [pytest.mark.process, pytest.mark.redis]

ROOT = Path(__file__).parents[3]


def run_until_killed(script: str, *args: str) -> None:
    """Run a Python script in another process, which must kill itself."""
    done = subprocess.run([sys.executable, "-c", script, *args], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


# ---------------------------------------------------------------- SQLite

COPIES = 40


def old_file(file: Path) -> None:
    """Make a file of layout 1 with the sessions of the frozen file, many times: too large for the
    cache of SQLite, which writes changed pages to the log before the commit."""
    frozen.unexpired_sqlite_copy(file.parent, frozen.LAYOUT_1)
    file.with_name("store.db").rename(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN")
        for table in ("sessions", "entries", "events", "answers", "said"):
            id, *others = (name for _, name, *_ in db.execute(f"PRAGMA table_info({table})"))
            for n in range(COPIES):
                values = ", ".join([f"{id} || '-{n}'", *others])
                where = f"WHERE {id} NOT LIKE '%-%'"
                db.execute(f"INSERT INTO {table} SELECT {values} FROM {table} {where}")
        db.execute("COMMIT")


KILLED_IN_A_CALL = """
import os, signal, sys
from pathlib import Path
from continuo.realtime.store import layout_v1
from continuo.realtime.store.sqlite import file

path, name, calls_left = sys.argv[1], sys.argv[2], int(sys.argv[3])
upgrade = getattr(layout_v1, name)

def kill_in_call(*args):
    global calls_left
    calls_left -= 1
    if calls_left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return upgrade(*args)

kill_in_call.__name__ = name
setattr(layout_v1, name, kill_in_call)
file.connect(Path(path), "normal")
"""
KILLED_AT_COMMIT = """
import os, signal, sqlite3, sys
from pathlib import Path
from continuo.realtime.store.sqlite import file

is_committed = sys.argv[2] == "committed"

class Connection(sqlite3.Connection):
    def commit(self):
        if is_committed:
            super().commit()
        os.kill(os.getpid(), signal.SIGKILL)

connect = sqlite3.connect
sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Connection)
file.connect(Path(sys.argv[1]), "normal")
"""


def migrated_dump(file: Path) -> frozen.Dump:
    connect(file, "normal").close()
    with contextlib.closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    return frozen.sqlite_dump(file)


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (KILLED_IN_A_CALL, ("upgrade_state", "0")),
        (KILLED_IN_A_CALL, ("upgrade_entry", "7")),
        (KILLED_IN_A_CALL, ("upgrade_entry", "1000")),
        (KILLED_IN_A_CALL, ("upgrade_event", "300")),
        (KILLED_IN_A_CALL, ("upgrade_checkpoint", "0")),
        (KILLED_IN_A_CALL, ("upgrade_response", "2")),
        (KILLED_AT_COMMIT, ("uncommitted",)),
        (KILLED_AT_COMMIT, ("committed",)),
    ],
)
def test_killed_migration_of_a_file_starts_again_and_loses_nothing(
    tmp_path: Path, script: str, args: tuple[str, ...]
) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    old_file(whole)
    old_file(killed)
    run_until_killed(script, str(killed), *args)
    assert migrated_dump(killed) == migrated_dump(whole)


def test_creation_of_a_file_that_is_killed_between_steps_is_completed(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    run_until_killed(KILLED_AT_COMMIT, str(file), "committed")
    with contextlib.closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert len(migrated_dump(file)["store"]) == 1, "one epoch"


async def test_value_that_cannot_be_upgraded_does_not_affect_other_sessions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = frozen.unexpired_sqlite_copy(tmp_path, frozen.LAYOUT_1)
    (session, *_), (other, *_) = (
        frozen.frozen_replay(frozen.LAYOUT_1)["known"]["sessions"][name]
        for name in ("everything", "rewound")
    )
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.execute("UPDATE entries SET packed = x'ff' WHERE session = ? AND n = 1", (session,))
        db.commit()
    store = await open_store(url)
    damaged, intact = await store.load(session), await store.load(other)
    assert damaged is not None
    assert intact is not None
    assert damaged.entries[1] == b"\xff"
    assert "upgrade_entry failed" in caplog.text
    await store.aclose()


async def test_file_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = await open_store(f"sqlite:///{file}")
    lease = await store.create(new_session())
    await store.aclose()
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 3")
    dump = frozen.sqlite_dump(file)
    with pytest.raises(StoreUnusable) as refused:
        await open_store(f"sqlite:///{file}")
    assert str(refused.value) == (
        f"the store {file} cannot be used: a newer version of Continuo has written it, in layout "
        "3; this version reads layouts up to 2"
    )
    assert frozen.sqlite_dump(file) == dump
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 2")
    store = await open_store(f"sqlite:///{file}")
    await append_entries(store, lease, 0, make_entry(1))
    await store.aclose()


# ---------------------------------------------------------------- Redis


@pytest.fixture
async def store(redis: RedisProcess) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(redis.url)
    yield store
    await store.aclose()


REQUESTS = [IdempotentRequest(f"event_{n}", b"item", f"item_{n}".encode()) for n in range(3)]
CHECKPOINT = ResponseCheckpoint(id="resp_1", seed=(1 << 63) - 1, prompt=3, entry=1, body=b"{}")


async def put_old_session(redis: RedisProcess) -> str:
    """Store a session as layout 1 did. Returns its id."""
    session = new_session().id
    names = keys.session_keys(session)
    window = b"".join(
        digest(request.key.encode())
        + digest(request.content)
        + bytes([len(request.result)])
        + request.result
        for request in REQUESTS
    )
    old_event = layout_1.pack(msgspec.msgpack.encode(["h", 7]))
    meta = {"owner": "gate-old", "fence": 5, "tenant": "acme", "secret": b"", "epoch": 0}
    times = {"created": 1, "deadline": int(time.time() * 1000) + 3_600_000, "parked": 1}
    async with redis.client() as client:
        await client.hset(
            names.meta, mapping={**meta, **times, "events": 9, "weight": 2 * len(old_event)}
        )
        settings = {"sampling": {"logit_bias": {}}}
        await client.set(names.state, layout_1.pack_json({"settings": settings}))
        await client.rpush(
            names.log,
            layout_1.pack_entry(b"{}"),
            layout_1.pack_entry(b'{"answer":"resp_1","open":true}'),
        )
        await client.hset(
            names.running,
            mapping={
                "resp_1": msgspec.msgpack.encode(CHECKPOINT),
                "resp_1#": 3,
                "resp_1:0": pack_ids((1, 2)),
                "resp_1:2": pack_ids((70_000,)),
            },
        )
        await client.set(names.once, window)
        await client.rpush(names.events, old_event, old_event)
    return session


async def load(store: RedisStore, session: str) -> Snapshot:
    snapshot = await store.load(session)
    assert snapshot is not None
    return snapshot


async def check_nothing_is_lost(store: RedisStore, lease: SessionLease) -> None:
    assert [await store.find_result(lease, request) for request in REQUESTS] == [
        request.result for request in REQUESTS
    ]
    repeated = await store.write(lease, WriteBatch(request=REQUESTS[1]))
    assert repeated == DuplicateWrite(REQUESTS[1].result)
    with pytest.raises(IdempotencyConflict):
        await store.find_result(lease, IdempotentRequest("event_1", b"other"))
    (running,) = (await load(store, lease.session)).running_responses
    assert (running.checkpoint.id, running.checkpoint.seed) == ("resp_1", (1 << 63) - 1)
    assert running.ids == (1, 2, 70_000)
    assert await store.journal(lease, "resp_1", 3, (4,)) == 4
    assert (await append_entries(store, lease, 2, make_entry(1))).next_offset == 9


async def test_first_claim_migrates_a_session_and_loses_nothing(
    redis: RedisProcess, store: RedisStore
) -> None:
    session = await put_old_session(redis)
    before = await load(store, session)
    assert (before.metadata.owner, before.metadata.entry_count) == ("gate-old", 2)
    async with redis.client() as client:
        assert await client.hget(keys.session_keys(session).meta, "layout") is None, "only read"
    lease = await store.claim(session, "gate-new", ttl_s=3600)
    after = await load(store, session)
    assert msgspec.structs.replace(after, metadata=before.metadata) == before
    assert after.events.first_offset == 7
    await check_nothing_is_lost(store, lease)
    with pytest.raises(LeaseLost):
        await store.confirm(SessionLease(session, "gate-old", 5, store.epoch))


async def test_events_of_a_migrated_session_are_bounded_like_others(
    redis: RedisProcess, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await put_old_session(redis)
    lease = await store.claim(session, "gate-new", ttl_s=3600)
    events = (await load(store, session)).events
    monkeypatch.setattr(keys, "EVENTS_BYTES_MAX", len(events.bodies[0]) + 3)
    added = msgspec.structs.replace(events, first_offset=9, bodies=(b"new",))
    await store.write(lease, WriteBatch(events=added))
    kept = (await load(store, session)).events
    assert (kept.first_offset, kept.bodies) == (8, (events.bodies[1], b"new"))


async def test_idempotency_window_of_a_migrated_session_evicts_the_oldest_first(
    redis: RedisProcess, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await store.claim(await put_old_session(redis), "gate-new", ttl_s=3600)
    monkeypatch.setattr(keys, "IDEMPOTENCY_BYTES_MAX", 4 * 23 - 1)
    new = IdempotentRequest("event_9", b"item", b"item_9")
    await store.write(lease, WriteBatch(request=new))
    found = [await store.find_result(lease, request) for request in [*REQUESTS, new]]
    assert found == [None, *(request.result for request in REQUESTS[1:]), b"item_9"]


KILLED_AFTER_CLAIM = """
import asyncio, os, signal, sys
from continuo.realtime.store import layout_v1, open_store

def kill(*args):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = await open_store(sys.argv[1])
    await store.claim(sys.argv[2], "gate-killed", ttl_s=3600)

layout_v1.upgrade_session = kill
asyncio.run(main())
"""


async def test_session_whose_migration_was_killed_is_migrated_by_the_next_claim(
    redis: RedisProcess, store: RedisStore
) -> None:
    session = await put_old_session(redis)
    before = await load(store, session)
    run_until_killed(KILLED_AFTER_CLAIM, redis.url, session)
    found = await load(store, session)
    assert found.metadata.owner == "gate-killed"
    assert msgspec.structs.replace(found, metadata=before.metadata) == before
    await check_nothing_is_lost(store, await store.claim(session, "gate-new", ttl_s=3600))


async def test_migration_under_a_lease_that_was_lost_changes_nothing(
    redis: RedisProcess, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway claims the session after this one has read it, and migrates it first."""
    session = await put_old_session(redis)
    other = await RedisStore.open(redis.url)
    read = layout_v1.upgrade_session(b"", (), (), b"", ())
    lease = await store.claim(session, "gate-new", ttl_s=3600)
    newer = await other.claim(session, "gate-newer", ttl_s=3600)
    with pytest.raises(LeaseLost, match="gate-newer"):
        await store._migrate(lease, read)
    await check_nothing_is_lost(other, newer)
    await other.aclose()


async def test_lost_migration_is_lost_data(redis: RedisProcess, store: RedisStore) -> None:
    """A failover may lose a migration and what was written after it."""
    lease = await store.claim(await put_old_session(redis), "gate-new", ttl_s=3600)
    async with redis.client() as client:
        await client.hdel(keys.session_keys(lease.session).meta, "layout")
    with pytest.raises(SessionDataLost, match="layout 1, not 2"):
        await append_entries(store, lease, 2, make_entry(1))


async def test_response_of_layout_1_is_found(redis: RedisProcess, store: RedisStore) -> None:
    old = msgspec.msgpack.encode(("acme", "resp_0", [], layout_1.pack(b"[]")))
    async with redis.client() as client:
        await client.set(keys.response_key("resp_old"), old)
    found = await store.find_response("resp_old")
    assert found is not None
    assert (found.id, found.tenant, found.parent) == ("resp_old", "acme", "resp_0")


async def test_session_of_a_newer_version_is_refused_by_name_and_stays_unchanged(
    redis: RedisProcess, store: RedisStore
) -> None:
    lease = await store.create(new_session())
    async with redis.client() as client:
        await client.hset(keys.session_keys(lease.session).meta, "layout", 3)
    message = (
        f"session {lease.session} is stored in layout 3 by a newer version of Continuo; this "
        "version reads layouts up to 2"
    )
    for call in (store.load(lease.session), store.claim(lease.session, "gate-2", ttl_s=60)):
        with pytest.raises(NewerLayout) as refused:
            await call
        assert str(refused.value) == message
        assert refused.value.retryable, "another gateway may be newer"
    found = await store.find(lease.session)
    assert found is not None
    assert (found.owner, found.fence) == (lease.owner, lease.fence)
    assert store.is_available, "other sessions can be used"


async def test_response_of_a_newer_version_is_refused_by_name(
    redis: RedisProcess, store: RedisStore
) -> None:
    response = StoredResponse(id="resp_newer", tenant="acme")
    async with redis.client() as client:
        stored = msgspec.msgpack.encode(response).replace(b"\2", b"\3", 1)
        await client.set(keys.response_key("resp_newer"), stored)
    with pytest.raises(NewerLayout, match="response resp_newer is stored in layout 3"):
        await store.find_response("resp_newer")


async def test_redis_of_a_newer_version_is_refused_by_name_at_start(redis: RedisProcess) -> None:
    await (await open_store(redis.url)).aclose()
    async with redis.client() as client:
        assert await client.get(keys.LAYOUT_KEY) == b"2"
        await client.set(keys.LAYOUT_KEY, 3)
        try:
            with pytest.raises(StoreUnusable) as refused:
                await open_store(redis.url)
            assert await client.get(keys.LAYOUT_KEY) == b"3"
        finally:
            await client.set(keys.LAYOUT_KEY, 2)
    assert str(refused.value) == (
        "the data in Redis is stored in layout 3 by a newer version of Continuo; this version "
        "reads layouts up to 2"
    )

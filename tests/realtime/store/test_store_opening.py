"""Tests of opening a store by its URL, and of the SQLite file."""

import asyncio
import contextlib
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from continuo.realtime.store import (
    SessionNotFound,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
    WriteBatch,
    default_store_url,
    open_store,
)
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.redis.client import RedisClient
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.garbage import garbage_of_block
from tests.support.ports import free_port
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.store_records import append_entries, make_entry, new_session
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    "url",
    ["", "store.db", "sqlite://", "sqlite:///", "mysql://host/db", "redis+sentinel://host:26379"],
)
async def test_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreUnusable):
        await open_store(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("rediss+sentinel://host:26379/service", "TLS is not supported together with Sentinel"),
        ("redis+sentinel://host:26379/service?ssl=true", "has no parameters"),
        ("redis+sentinel://host:26379/service?sentinel_password=secret", "passwords of sentinels"),
    ],
)
async def test_what_sentinel_cannot_have_is_refused_by_name(url: str, reason: str) -> None:
    with pytest.raises(StoreUnusable, match=reason) as caught:
        await open_store(url)
    assert "secret" not in str(caught.value)


async def test_error_message_does_not_repeat_the_password() -> None:
    with pytest.raises(StoreUnusable) as caught:
        await open_store("mysql://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


async def test_store_that_could_not_be_opened_leaves_nothing_to_the_garbage_collector() -> None:
    """A gateway that waits for its store tries again and again."""

    async def try_to_open() -> None:
        with contextlib.suppress(StoreUnavailable):
            await open_store(f"redis://127.0.0.1:{free_port()}")

    await try_to_open()
    with garbage_of_block() as garbage:
        await try_to_open()
    assert not garbage


@needs_redis
@pytest.mark.redis
async def test_redis_refuses_nothing_that_a_store_asks_of_it(tmp_path: Path) -> None:
    """An error reply, also one that the client library expects, leaves a reference cycle in it."""
    process = RedisProcess(tmp_path / "redis")
    await process.start()
    observer = RedisClient(process.url)
    refused = await observer.execute("INFO", "errorstats")
    store = await open_store(process.url)
    new = new_session()
    lease = await store.create(new)
    await append_entries(store, lease, 0, make_entry(1))
    await store.claim(new.id, "gate-2", ttl_s=3600)
    await store.load(new.id)
    await store.sweep(10)
    await store.tenants.list_sessions("acme")
    assert await observer.execute("INFO", "errorstats") == refused
    await store.aclose()
    await observer.aclose()
    process.stop()


async def test_unreachable_redis_is_a_retryable_error() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await open_store(f"redis://127.0.0.1:{free_port()}")
    assert caught.value.retryable


async def test_default_store_is_a_file_readable_only_by_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = await open_store(default_store_url())
    file = tmp_path / "state" / "continuo" / "store.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    await store.aclose()


async def test_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///here.db")
    assert (tmp_path / "here.db").exists()
    await store.aclose()


async def test_sqlite_file_keeps_epoch_leases_and_entries_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = await open_store(url)
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1, 2))
    epoch = store.epoch
    await store.aclose()
    store = await open_store(url)
    assert store.epoch == epoch
    await append_entries(store, lease, 1, make_entry(3))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1, 2), make_entry(3))
    await store.aclose()


async def test_path_that_is_no_database_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be one")
    (tmp_path / "folder").mkdir()
    for name in ("text", "folder", "text/below"):
        with pytest.raises(StoreUnusable):
            await open_store(f"sqlite:///{tmp_path / name}")


async def test_schema_of_another_version_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "store.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreUnusable, match="layout 99"):
        await open_store(f"sqlite:///{tmp_path / 'store.db'}")


@pytest.mark.parametrize(("durability", "level"), [("normal", 1), ("strict", 2)])
async def test_durability_sets_the_synchronous_pragma(
    tmp_path: Path, durability: Durability, level: int
) -> None:
    store = await SqliteStore.open(tmp_path / "store.db", durability)
    db = store._worker._db  # pyright: ignore[reportPrivateUsage]
    assert db.execute("PRAGMA synchronous").fetchone() == (level,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.aclose()


@pytest.mark.long
async def test_locked_file_does_not_block_the_event_loop(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'store.db'}")
    lease = await store.create(new_session())
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(
        store.write(lease, WriteBatch(kept_entries=0, entries=(make_entry(1),)))
    )
    loop_rounds = 0
    while not writing.done():
        await asyncio.sleep(0.01)
        loop_rounds += 1
    with pytest.raises(StoreUnavailable):
        await writing
    assert loop_rounds > 20
    other.rollback()
    await append_entries(store, lease, 0, make_entry(1))
    other.close()
    await store.aclose()


async def test_sessions_expire_by_the_given_clock(tmp_path: Path) -> None:
    now = [1000.0]
    store = await SqliteStore.open(None, clock=lambda: now[0])
    lease = await store.create(new_session(ttl_s=10))
    now[0] = 1009.9
    assert (await store.sweep(10)).expired == []
    assert await store.find(lease.session) is not None
    now[0] = 1010.0
    assert await store.find(lease.session) is None
    assert (await store.sweep(10)).expired == [lease.session]
    await store.aclose()


async def test_emptied_database_is_another_store(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = await open_store(f"sqlite:///{file}")
    lease = await store.create(new_session())
    other = sqlite3.connect(file)
    other.execute("DELETE FROM sessions")
    other.execute("DELETE FROM store")
    other.commit()
    other.close()
    old_epoch = store.epoch
    with pytest.raises(StoreReplaced):
        await append_entries(store, lease, 0, make_entry(1))
    assert store.epoch != old_epoch
    with pytest.raises(StoreReplaced):
        await append_entries(store, lease, 0, make_entry(1))
    new = await store.create(new_session())
    await append_entries(store, new, 0, make_entry(1))
    with pytest.raises(SessionNotFound):
        await store.claim(lease.session, "gate-2", ttl_s=60)
    await store.aclose()


async def test_closed_store_leaves_no_thread() -> None:
    other_threads = store_threads()
    store = await open_store("sqlite://:memory:")
    await store.create(new_session())
    assert store_threads() - other_threads, "an open store has a thread"
    await store.aclose()
    await wait_until(lambda: store_threads() <= other_threads, 10)


def store_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "store"}

"""A store that answers and takes no writes counts as unhealthy, with its cause in one log line."""

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from continuo.realtime.store import (
    Entry,
    SessionLease,
    Store,
    StoreReplaced,
    StoreUnavailable,
    TokenBatch,
    WriteBatch,
    health_probe,
    open_store,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.store_records import answer, append, entry, fresh_session
from tests.support.store_refusals import (
    REFUSALS,
    Refusal,
    password_required,
    run,
    with_a_user,
)

NOTICED_S = 20.0
"""A fraction of a second, on a machine that does nothing else."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path / "redis", "--appendonly", "yes")
    await process.start()
    yield process
    process.kill()


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.aclose()


async def until(store: Store, there: bool) -> None:
    async with asyncio.timeout(NOTICED_S):
        while store.is_available is not there:
            await asyncio.sleep(0.01)


async def positions(store: Store, lease: SessionLease) -> list[tuple[int, ...]]:
    found = await store.load(lease.session)
    assert found is not None
    return [one.ids for one in found.entries]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the store, and none of them with a traceback."""
    assert not any(record.exc_info for record in caplog.records)
    return [r.getMessage() for r in caplog.records if r.name.startswith("continuo.realtime.store")]


# ---------------------------------------------------------------- Redis


@needs_redis
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.name)
async def test_redis_refuses_writes(
    redis: RedisProcess, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    """Noticed though nothing is written; each write is refused as one to be tried again; one line
    at its beginning and one at its end."""
    async with opened(await with_a_user(redis)) as store:
        lease = await store.create(fresh_session())
        await store.write(
            lease, WriteBatch(kept_entries=0, entries=(entry(1),), started_responses=(answer(),))
        )
        await run(redis, refusal.begin)
        await until(store, there=False)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await append(store, lease, 1, entry(2))
            with pytest.raises(StoreUnavailable):
                await store.create(fresh_session())
            assert not store.is_available, "no write has succeeded meanwhile"
        (line,) = lines(caplog)
        assert line.startswith("Redis cannot be written: ")
        assert refusal.cause in line
        await run(redis, refusal.mend)
        await until(store, there=True)
        assert await positions(store, lease) == [(1,)], "what was refused is not there"
        await append(store, lease, 1, entry(2))
        assert len(lines(caplog)) == 2
        assert "again" in lines(caplog)[1]
        async with redis.client() as admin:
            assert await admin.keys("*probe*") == []


@needs_redis
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.name)
async def test_redis_refuses_a_journal(
    redis: RedisProcess, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many scripts in one round trip are refused in the same words. What has not been noticed yet
    is what the call itself finds."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 3600.0)
    async with opened(await with_a_user(redis)) as store:
        lease = await store.create(fresh_session())
        await store.write(lease, WriteBatch(started_responses=(answer(),)))
        spoken = TokenBatch(lease, "resp_1", 0, (1, 2))
        assert await store.journal_all([spoken]) == [2]
        if refusal.name == "eviction":
            return  # no call finds it, unless in doubt
        await run(redis, refusal.begin)
        with pytest.raises(StoreUnavailable) as caught:
            await store.journal_all([TokenBatch(lease, "resp_1", 2, (3,))])
        assert refusal.cause in str(caught.value)
        assert not store.is_available
        await run(redis, refusal.mend)
        await until(store, there=True)
        assert await store.journal_all([TokenBatch(lease, "resp_1", 2, (3,))]) == [3]


@needs_redis
async def test_a_password_is_set_at_runtime(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The first command on a new connection has more words than Redis reads before a password, and
    is refused in words of its own."""
    async with opened(redis.url) as store:
        lease = await store.create(fresh_session())
        async with password_required(redis):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await append(store, lease, 0, entry(1))
            await until(store, there=False)
        await until(store, there=True)
        await append(store, lease, 0, entry(1))
        assert len(lines(caplog)) == 2


@needs_redis
async def test_one_right_is_missing(redis: RedisProcess, caplog: pytest.LogCaptureFixture) -> None:
    """The probe needs each command that any write needs: those that still succeed do not make the
    store healthy in turns with those that fail."""
    async with opened(await with_a_user(redis)) as store:
        lease = await store.create(fresh_session())
        await run(redis, (("ACL", "SETUSER", "gate", "-rpush"),))
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await append(store, lease, 0, entry(1))
            await store.create(fresh_session())
            await asyncio.sleep(0.1)
            assert not store.is_available
        await run(redis, (("ACL", "SETUSER", "gate", "+rpush"),))
        await until(store, there=True)
        assert len(lines(caplog)) == 2


@needs_redis
async def test_redis_that_starts_out_of_memory_is_unhealthy_from_the_start(
    redis: RedisProcess,
) -> None:
    async with opened(redis.url):
        pass
    async with redis.client() as admin:
        await admin.config_set("maxmemory", "1mb")
    async with opened(redis.url) as store:
        await until(store, there=False)


# ---------------------------------------------------------------- SQLite


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(url_of(tmp_path)) as store:
        yield cast(SqliteStore, store)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Another process holds the file; the value unlocks it."""
    program = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN EXCLUSIVE')\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        yield other.stdin.close
        other.stdin.close()


async def test_a_file_that_is_locked(
    tmp_path: Path, sqlite: SqliteStore, request: pytest.FixtureRequest, caplog: Any
) -> None:
    lease = await sqlite.create(fresh_session())
    unlock = cast(Callable[[], None], request.getfixturevalue("locked"))
    await until(sqlite, there=False)
    with pytest.raises(StoreUnavailable):
        await append(sqlite, lease, 0, entry(1))
    (line,) = lines(caplog)
    assert line == "The store cannot be written: SQLite: database is locked"
    unlock()
    await until(sqlite, there=True)
    await append(sqlite, lease, 0, entry(1))


async def test_a_file_that_may_not_grow(sqlite: SqliteStore, caplog: Any) -> None:
    """SQLite's own limit is told as a full disk is. A small write may succeed between large ones
    that do not: the store stays unhealthy all the same, and says so once."""
    lease = await sqlite.create(fresh_session())
    await limit_pages(sqlite, 0)
    large = Entry(os.urandom(100_000))
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await append(sqlite, lease, 0, large)
        await asyncio.sleep(0.3)
        assert not sqlite.is_available
    (line,) = lines(caplog)
    assert line == "The store cannot be written: SQLite: database or disk is full"
    await limit_pages(sqlite, 1_000_000)
    await until(sqlite, there=True)
    await append(sqlite, lease, 0, large)


async def limit_pages(sqlite: SqliteStore, count: int) -> None:
    """0: as many as there are."""

    def limit() -> None:
        db = sqlite._worker._db
        pages = count or db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")

    await sqlite._worker.run(limit)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a disk of 2 MB")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


async def test_a_disk_that_is_full(small_disk: Path, caplog: Any) -> None:
    async with opened(url_of(small_disk)) as store:
        lease = await store.create(fresh_session())
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        count = 0
        with contextlib.suppress(StoreUnavailable):
            while True:
                await append(store, lease, count, Entry(os.urandom(50_000), (count,)))
                count += 1
        await until(store, there=False)
        filler.unlink()
        await until(store, there=True)
        assert await positions(store, lease) == [(n,) for n in range(count)]
        await append(store, lease, count, entry(count))
        assert len(lines(caplog)) == 2


@pytest.fixture
def size_limit() -> Iterator[Callable[[int], None]]:
    """Of the files that this process writes; the signal that comes with it is ignored by Python."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size if size else soft, hard))

    yield limit
    limit(0)


async def test_a_file_that_is_too_large(
    tmp_path: Path, sqlite: SqliteStore, size_limit: Callable[[int], None], caplog: Any
) -> None:
    lease = await sqlite.create(fresh_session())
    size_limit((tmp_path / "store.db-wal").stat().st_size + 20_000)
    with pytest.raises(StoreUnavailable):
        await append(sqlite, lease, 0, Entry(os.urandom(100_000)))
    await until(sqlite, there=False)
    size_limit(0)
    await until(sqlite, there=True)
    await append(sqlite, lease, 0, Entry(os.urandom(100_000)))
    assert len(lines(caplog)) == 2


async def test_a_probe_writes_to_the_disk(tmp_path: Path) -> None:
    """It changes nothing that a call could see."""
    async with opened(url_of(tmp_path)) as store:
        epoch = store.epoch
        lease = await store.create(fresh_session())
        wal = tmp_path / "store.db-wal"
        size = wal.stat().st_size
        async with asyncio.timeout(NOTICED_S):
            while wal.stat().st_size == size:
                await asyncio.sleep(0.02)
        await append(store, lease, 0, entry(1))
        assert store.epoch == epoch
    other = sqlite3.connect(tmp_path / "store.db")
    assert other.execute("SELECT epoch FROM store").fetchall() == [(epoch,)]
    assert other.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    other.close()


async def test_a_disk_that_hangs(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that has the file does not return from a write, and no call fails."""
    monkeypatch.setattr(health_probe, "PROBE_TIMEOUT_S", 0.3)
    moves = threading.Event()
    hanging = asyncio.create_task(sqlite._worker.run(moves.wait))
    await until(sqlite, there=False)
    moves.set()
    await hanging
    await until(sqlite, there=True)


# ---------------------------------------------------------------- the file is gone


def delete(folder: Path, *endings: str) -> None:
    for ending in endings:
        (folder / f"store.db{ending}").unlink()


@pytest.mark.parametrize(
    "endings", [("",), ("", "-wal"), ("", "-wal", "-shm")], ids=lambda one: " ".join(one) or "db"
)
async def test_a_deleted_file_is_another_store(
    tmp_path: Path, sqlite: SqliteStore, endings: tuple[str, ...], caplog: Any
) -> None:
    lease = await sqlite.create(fresh_session())
    await append(sqlite, lease, 0, entry(1))
    delete(tmp_path, *endings)
    with pytest.raises(StoreReplaced):
        await append(sqlite, lease, 1, entry(2))
    assert sqlite.is_available, "it is written to the file that is there now"
    again = await sqlite.create(fresh_session(id=lease.session))
    await append(sqlite, again, 0, entry(1), entry(2))
    (line,) = lines(caplog)
    assert "was deleted or replaced. It had 1 sessions" in line
    await sqlite.aclose()
    async with opened(url_of(tmp_path)) as store:
        assert await positions(store, lease) == [(1,), (2,)]


@pytest.mark.parametrize("endings", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=" ".join)
async def test_without_the_write_ahead_log_nothing_is_lost(
    tmp_path: Path, sqlite: SqliteStore, endings: tuple[str, ...]
) -> None:
    lease = await sqlite.create(fresh_session())
    await append(sqlite, lease, 0, entry(1))
    delete(tmp_path, *endings)
    await append(sqlite, lease, 1, entry(2))
    await append(sqlite, lease, 2, entry(3))
    kill(tmp_path, sqlite)
    async with opened(url_of(tmp_path / "killed")) as store:
        assert await positions(store, lease) == [(1,), (2,), (3,)]


def kill(folder: Path, store: SqliteStore) -> None:
    """What a start would find if the process died now."""
    (folder / "killed").mkdir()
    for file in folder.glob("store.db*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, folder / "killed" / file.name)


async def test_an_idle_store_notices_that_its_file_is_gone(
    tmp_path: Path, sqlite: SqliteStore
) -> None:
    epoch = sqlite.epoch
    delete(tmp_path, "")
    async with asyncio.timeout(NOTICED_S):
        while sqlite.epoch == epoch:
            await asyncio.sleep(0.01)
    assert (tmp_path / "store.db").exists()


async def test_a_backup_that_is_put_back(tmp_path: Path, sqlite: SqliteStore) -> None:
    """It has the epoch of the store that it was copied from, and less than that: so it gets another
    one. The log beside it is of the file before, and is not applied to it."""
    lease = await sqlite.create(fresh_session())
    parked = await sqlite.create(fresh_session())
    await append(sqlite, parked, 0, entry(7))
    backup = sqlite3.connect(tmp_path / "backup.db")
    live = sqlite3.connect(tmp_path / "store.db")
    live.backup(backup)
    live.close()
    backup.close()
    await append(sqlite, lease, 0, entry(1))
    os.replace(tmp_path / "backup.db", tmp_path / "store.db")
    with pytest.raises(StoreReplaced):
        await append(sqlite, lease, 1, entry(2))
    assert await positions(sqlite, parked) == [(7,)]
    assert await positions(sqlite, lease) == []
    taken = await sqlite.claim(lease.session, "gate-1", ttl_s=60)
    await append(sqlite, taken, 0, entry(1), entry(2))
    await sqlite.aclose()
    db = sqlite3.connect(tmp_path / "store.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_a_file_that_was_moved_away_is_complete(tmp_path: Path, sqlite: SqliteStore) -> None:
    """Also what only its write-ahead log had."""
    lease = await sqlite.create(fresh_session())
    await append(sqlite, lease, 0, entry(1))
    (tmp_path / "moved").mkdir()
    os.replace(tmp_path / "store.db", tmp_path / "moved" / "store.db")
    with pytest.raises(StoreReplaced):
        await append(sqlite, lease, 1, entry(2))
    async with opened(url_of(tmp_path / "moved")) as store:
        assert (await positions(store, lease))[0] == (1,)


async def test_a_folder_that_is_gone(tmp_path: Path, caplog: Any) -> None:
    """Nothing is acknowledged until it is back."""
    folder = tmp_path / "state"
    async with opened(url_of(folder)) as store:
        lease = await store.create(fresh_session())
        await append(store, lease, 0, entry(1))
        folder.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable):
            await append(store, lease, 1, entry(2))
        assert not store.is_available
        assert not folder.exists(), "a disk may be mounted there"
        (tmp_path / "away").rename(folder)
        await until(store, there=True)
        with pytest.raises(StoreReplaced):
            await append(store, lease, 1, entry(2))
        taken = await store.claim(lease.session, "gate-1", ttl_s=60)
        assert (await positions(store, lease))[0] == (1,)
        await append(store, taken, 1, entry(2))
    assert len(lines(caplog)) == 3, "it is gone; it cannot be written; it can"


async def test_a_file_that_is_none_is_refused_until_it_is_gone(
    tmp_path: Path, sqlite: SqliteStore
) -> None:
    lease = await sqlite.create(fresh_session())
    text = "not a database, but a text that is long enough to be one" * 20
    (tmp_path / "text").write_text(text)
    os.replace(tmp_path / "text", tmp_path / "store.db")
    with pytest.raises(StoreUnavailable, match="not a database"):
        await append(sqlite, lease, 0, entry(1))
    await until(sqlite, there=False)
    assert (tmp_path / "store.db").read_text() == text
    (tmp_path / "store.db").unlink()
    await until(sqlite, there=True)
    await append(sqlite, await sqlite.create(fresh_session()), 0, entry(1))


async def test_a_link_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "store.db").symlink_to(tmp_path / "real" / "store.db")
    async with opened(url_of(tmp_path)) as store:
        lease = await store.create(fresh_session())
        await append(store, lease, 0, entry(1))
        delete(tmp_path / "real", "")
        with pytest.raises(StoreReplaced):
            await append(store, lease, 1, entry(2))


async def test_it_is_logged_as_a_warning(sqlite: SqliteStore, tmp_path: Path, caplog: Any) -> None:
    """So that it is on the operator's page, too."""
    delete(tmp_path, "")
    await sqlite.find("sess_1")
    (record,) = [r for r in caplog.records if r.name.startswith("continuo.realtime.store")]
    assert record.levelno == logging.WARNING

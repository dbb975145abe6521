"""A store that replies and accepts no writes is unhealthy, with its cause in one log line."""

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
from tests.support.store_records import append_entries, make_entry, new_session, response_checkpoint
from tests.support.store_refusals import (
    STORE_FAILURES,
    StoreFailure,
    create_acl_user,
    password_required,
    run_commands,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DETECTION_TIMEOUT_S = 20.0
"""Bound on the time until a fault is detected: a fraction of a second on an idle machine."""


@pytest.fixture(autouse=True)
def _probe_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path / "redis", "--appendonly", "yes")
    await process.start()
    yield process
    process.kill()


@contextlib.asynccontextmanager
async def open_at(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.aclose()


async def wait_for_health(store: Store, available: bool) -> None:
    await wait_until(lambda: store.is_available is available, DETECTION_TIMEOUT_S)


async def stored_entries(store: Store, lease: SessionLease) -> list[bytes]:
    found = await store.load(lease.session)
    assert found is not None
    return [*found.entries]


def store_log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of the store, none of which may have a traceback."""
    assert not any(record.exc_info for record in caplog.records)
    return [r.getMessage() for r in caplog.records if r.name.startswith("continuo.realtime.store")]


# ---------------------------------------------------------------- Redis


@needs_redis
@pytest.mark.parametrize("refusal", STORE_FAILURES, ids=lambda refusal: refusal.name)
async def test_redis_that_refuses_writes_is_unhealthy_until_it_accepts_them(
    redis: RedisProcess, refusal: StoreFailure, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe detects the refusal without a write, each write fails as retryable, and the
    outage has one log line at its beginning and one at its end."""
    async with open_at(await create_acl_user(redis)) as store:
        lease = await store.create(new_session())
        await store.write(
            lease,
            WriteBatch(
                kept_entries=0, entries=(make_entry(1),), started_responses=(response_checkpoint(),)
            ),
        )
        await run_commands(redis, refusal.start_commands)
        await wait_for_health(store, available=False)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await append_entries(store, lease, 1, make_entry(2))
            with pytest.raises(StoreUnavailable):
                await store.create(new_session())
            assert not store.is_available, "the store stays unavailable while no write succeeds"
        (line,) = store_log_lines(caplog)
        assert line.startswith("Redis cannot be written: ")
        assert refusal.logged_cause in line
        await run_commands(redis, refusal.stop_commands)
        await wait_for_health(store, available=True)
        assert await stored_entries(store, lease) == [make_entry(1)], (
            "refused writes changed nothing"
        )
        await append_entries(store, lease, 1, make_entry(2))
        assert len(store_log_lines(caplog)) == 2
        assert "again" in store_log_lines(caplog)[1]
        async with redis.client() as admin:
            assert await admin.keys("*probe*") == []


@needs_redis
@pytest.mark.parametrize("refusal", STORE_FAILURES, ids=lambda refusal: refusal.name)
async def test_refused_journal_makes_the_store_unhealthy(
    redis: RedisProcess, refusal: StoreFailure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused pipeline of scripts gives the same cause as a single write.

    The probe does not run, so the call itself detects the refusal.
    """
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 3600.0)
    async with open_at(await create_acl_user(redis)) as store:
        lease = await store.create(new_session())
        await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
        batch = TokenBatch(lease, "resp_1", 0, (1, 2))
        assert await store.journal_all([batch]) == [2]
        if refusal.name == "eviction":
            return  # a call reads the eviction policy only after an outage
        await run_commands(redis, refusal.start_commands)
        with pytest.raises(StoreUnavailable) as caught:
            await store.journal_all([TokenBatch(lease, "resp_1", 2, (3,))])
        assert refusal.logged_cause in str(caught.value)
        assert not store.is_available
        await run_commands(redis, refusal.stop_commands)
        await wait_for_health(store, available=True)
        assert await store.journal_all([TokenBatch(lease, "resp_1", 2, (3,))]) == [3]


@needs_redis
async def test_password_set_at_runtime_makes_the_store_unhealthy(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The first command on a new connection has more arguments than Redis reads before
    authentication, and is refused with an error of its own."""
    async with open_at(redis.url) as store:
        lease = await store.create(new_session())
        async with password_required(redis):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await append_entries(store, lease, 0, make_entry(1))
            await wait_for_health(store, available=False)
        await wait_for_health(store, available=True)
        await append_entries(store, lease, 0, make_entry(1))
        assert len(store_log_lines(caplog)) == 2


@needs_redis
async def test_one_missing_acl_right_keeps_the_store_unhealthy(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe runs every command that a write needs.

    So the store does not alternate between healthy and unhealthy while only some writes fail.
    """
    async with open_at(await create_acl_user(redis)) as store:
        lease = await store.create(new_session())
        await run_commands(redis, (("ACL", "SETUSER", "gate", "-rpush"),))
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await append_entries(store, lease, 0, make_entry(1))
            await store.create(new_session())
            await asyncio.sleep(0.1)
            assert not store.is_available
        await run_commands(redis, (("ACL", "SETUSER", "gate", "+rpush"),))
        await wait_for_health(store, available=True)
        assert len(store_log_lines(caplog)) == 2


@needs_redis
async def test_redis_out_of_memory_at_open_is_unhealthy_from_the_start(
    redis: RedisProcess,
) -> None:
    async with open_at(redis.url):
        pass
    async with redis.client() as admin:
        await admin.config_set("maxmemory", "1mb")
    async with open_at(redis.url) as store:
        await wait_for_health(store, available=False)


# ---------------------------------------------------------------- SQLite


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_at(url_of(tmp_path)) as store:
        yield cast(SqliteStore, store)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


@pytest.fixture
def unlock_file(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A lock on the file by another process. Returns the function that unlocks the file."""
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
    ) as locker:
        assert locker.stdin is not None
        assert locker.stdout is not None
        locker.stdout.readline()
        yield locker.stdin.close
        locker.stdin.close()


async def test_locked_file_makes_the_store_unhealthy_until_unlocked(
    tmp_path: Path, sqlite: SqliteStore, request: pytest.FixtureRequest, caplog: Any
) -> None:
    lease = await sqlite.create(new_session())
    unlock = cast(Callable[[], None], request.getfixturevalue("unlock_file"))
    await wait_for_health(sqlite, available=False)
    with pytest.raises(StoreUnavailable):
        await append_entries(sqlite, lease, 0, make_entry(1))
    (line,) = store_log_lines(caplog)
    assert line == "The store cannot be written: SQLite: database is locked (SQLITE_BUSY)"
    unlock()
    await wait_for_health(sqlite, available=True)
    await append_entries(sqlite, lease, 0, make_entry(1))


async def test_file_at_its_page_limit_keeps_the_store_unhealthy(
    sqlite: SqliteStore, caplog: Any
) -> None:
    """SQLite reports its own page limit like a full disk.

    A small write may succeed between large ones that fail: the store stays unhealthy all the same,
    and logs one line.
    """
    lease = await sqlite.create(new_session())
    await limit_pages(sqlite, 0)
    large = os.urandom(100_000)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await append_entries(sqlite, lease, 0, large)
        await asyncio.sleep(0.3)
        assert not sqlite.is_available
    (line,) = store_log_lines(caplog)
    assert line == "The store cannot be written: SQLite: database or disk is full (SQLITE_FULL)"
    await limit_pages(sqlite, 1_000_000)
    await wait_for_health(sqlite, available=True)
    await append_entries(sqlite, lease, 0, large)


async def limit_pages(sqlite: SqliteStore, count: int) -> None:
    """Limit the file to `count` pages; 0: to its present size."""

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
        pytest.skip("needs the right to mount a tmpfs of 2 MB")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


async def test_full_disk_makes_the_store_unhealthy_and_loses_nothing(
    small_disk: Path, caplog: Any
) -> None:
    async with open_at(url_of(small_disk)) as store:
        lease = await store.create(new_session())
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        written: list[bytes] = []
        with contextlib.suppress(StoreUnavailable):
            while True:
                entry = os.urandom(50_000)
                await append_entries(store, lease, len(written), entry)
                written.append(entry)
        await wait_for_health(store, available=False)
        filler.unlink()
        await wait_for_health(store, available=True)
        assert await stored_entries(store, lease) == written
        await append_entries(store, lease, len(written), make_entry(1))
        assert len(store_log_lines(caplog)) == 2


@pytest.fixture
def size_limit() -> Iterator[Callable[[int], None]]:
    """Returns a function that limits the size of files written by this process; 0: no limit.

    Python ignores SIGXFSZ, so a larger write fails with an error.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size if size else soft, hard))

    yield limit
    limit(0)


async def test_file_at_the_size_limit_makes_the_store_unhealthy(
    tmp_path: Path, sqlite: SqliteStore, size_limit: Callable[[int], None], caplog: Any
) -> None:
    lease = await sqlite.create(new_session())
    size_limit((tmp_path / "store.db-wal").stat().st_size + 20_000)
    with pytest.raises(StoreUnavailable):
        await append_entries(sqlite, lease, 0, os.urandom(100_000))
    await wait_for_health(sqlite, available=False)
    size_limit(0)
    await wait_for_health(sqlite, available=True)
    await append_entries(sqlite, lease, 0, os.urandom(100_000))
    assert len(store_log_lines(caplog)) == 2


async def test_probe_writes_to_the_disk_without_a_visible_change(tmp_path: Path) -> None:
    """Neither the store epoch nor the tables change."""
    async with open_at(url_of(tmp_path)) as store:
        epoch = store.epoch
        lease = await store.create(new_session())
        wal = tmp_path / "store.db-wal"
        size = wal.stat().st_size
        await wait_until(lambda: wal.stat().st_size != size, DETECTION_TIMEOUT_S)
        await append_entries(store, lease, 0, make_entry(1))
        assert store.epoch == epoch
    other = sqlite3.connect(tmp_path / "store.db")
    assert other.execute("SELECT epoch FROM store").fetchall() == [(epoch,)]
    assert other.execute("SELECT count(*) FROM stored_responses").fetchone() == (0,)
    other.close()


async def test_hanging_disk_makes_the_store_unhealthy(
    sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that owns the file does not return from a write, and no call fails."""
    monkeypatch.setattr(health_probe, "PROBE_TIMEOUT_S", 0.3)
    resumed = threading.Event()
    hanging = asyncio.create_task(sqlite._worker.run(resumed.wait))
    await wait_for_health(sqlite, available=False)
    resumed.set()
    await hanging
    await wait_for_health(sqlite, available=True)


# ---------------------------------------------------------------- deleted and replaced files


def unlink_files(folder: Path, *endings: str) -> None:
    for ending in endings:
        (folder / f"store.db{ending}").unlink()


@pytest.mark.parametrize(
    "endings",
    [("",), ("", "-wal"), ("", "-wal", "-shm")],
    ids=lambda endings: " ".join(endings) or "db",
)
async def test_deleted_file_is_detected_as_a_replaced_store(
    tmp_path: Path, sqlite: SqliteStore, endings: tuple[str, ...], caplog: Any
) -> None:
    lease = await sqlite.create(new_session())
    await append_entries(sqlite, lease, 0, make_entry(1))
    unlink_files(tmp_path, *endings)
    with pytest.raises(StoreReplaced):
        await append_entries(sqlite, lease, 1, make_entry(2))
    assert sqlite.is_available, "the store writes to the new file"
    recreated = await sqlite.create(new_session(id=lease.session))
    await append_entries(sqlite, recreated, 0, make_entry(1), make_entry(2))
    (line,) = store_log_lines(caplog)
    assert "was deleted or replaced. It had 1 sessions" in line
    await sqlite.aclose()
    async with open_at(url_of(tmp_path)) as store:
        assert await stored_entries(store, lease) == [make_entry(1), make_entry(2)]


@pytest.mark.parametrize("endings", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=" ".join)
async def test_deleted_write_ahead_log_loses_no_acknowledged_write(
    tmp_path: Path, sqlite: SqliteStore, endings: tuple[str, ...]
) -> None:
    lease = await sqlite.create(new_session())
    await append_entries(sqlite, lease, 0, make_entry(1))
    unlink_files(tmp_path, *endings)
    await append_entries(sqlite, lease, 1, make_entry(2))
    await append_entries(sqlite, lease, 2, make_entry(3))
    copy_as_after_a_kill(tmp_path, sqlite)
    async with open_at(url_of(tmp_path / "killed")) as store:
        assert await stored_entries(store, lease) == [make_entry(1), make_entry(2), make_entry(3)]


def copy_as_after_a_kill(folder: Path, store: SqliteStore) -> None:
    """Copy the files that a restart would find if the process died now."""
    (folder / "killed").mkdir()
    for file in folder.glob("store.db*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, folder / "killed" / file.name)


async def test_idle_store_detects_that_its_file_was_deleted(
    tmp_path: Path, sqlite: SqliteStore
) -> None:
    epoch = sqlite.epoch
    unlink_files(tmp_path, "")
    await wait_until(lambda: sqlite.epoch != epoch, DETECTION_TIMEOUT_S)
    assert (tmp_path / "store.db").exists()


async def test_restored_backup_is_another_store_and_stays_intact(
    tmp_path: Path, sqlite: SqliteStore
) -> None:
    """The backup has the store epoch of its original and less data, so it gets a new epoch.

    The write-ahead log beside the backup belongs to the original, and is not applied to the backup.
    """
    lease = await sqlite.create(new_session())
    parked = await sqlite.create(new_session())
    await append_entries(sqlite, parked, 0, make_entry(7))
    backup = sqlite3.connect(tmp_path / "backup.db")
    live = sqlite3.connect(tmp_path / "store.db")
    live.backup(backup)
    live.close()
    backup.close()
    await append_entries(sqlite, lease, 0, make_entry(1))
    os.replace(tmp_path / "backup.db", tmp_path / "store.db")
    with pytest.raises(StoreReplaced):
        await append_entries(sqlite, lease, 1, make_entry(2))
    assert await stored_entries(sqlite, parked) == [make_entry(7)]
    assert await stored_entries(sqlite, lease) == []
    claimed = await sqlite.claim(lease.session, "gate-1", ttl_s=60)
    await append_entries(sqlite, claimed, 0, make_entry(1), make_entry(2))
    await sqlite.aclose()
    db = sqlite3.connect(tmp_path / "store.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_moved_file_is_complete(tmp_path: Path, sqlite: SqliteStore) -> None:
    """The moved file has also what only the write-ahead log held."""
    lease = await sqlite.create(new_session())
    await append_entries(sqlite, lease, 0, make_entry(1))
    (tmp_path / "moved").mkdir()
    os.replace(tmp_path / "store.db", tmp_path / "moved" / "store.db")
    with pytest.raises(StoreReplaced):
        await append_entries(sqlite, lease, 1, make_entry(2))
    async with open_at(url_of(tmp_path / "moved")) as store:
        assert (await stored_entries(store, lease))[0] == make_entry(1)


async def test_missing_folder_makes_the_store_unhealthy_until_restored(
    tmp_path: Path, caplog: Any
) -> None:
    """No write is acknowledged until the folder is restored."""
    folder = tmp_path / "state"
    async with open_at(url_of(folder)) as store:
        lease = await store.create(new_session())
        await append_entries(store, lease, 0, make_entry(1))
        folder.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable):
            await append_entries(store, lease, 1, make_entry(2))
        assert not store.is_available
        assert not folder.exists(), "the folder may be a mount point, so it is not created"
        (tmp_path / "away").rename(folder)
        await wait_for_health(store, available=True)
        with pytest.raises(StoreReplaced):
            await append_entries(store, lease, 1, make_entry(2))
        claimed = await store.claim(lease.session, "gate-1", ttl_s=60)
        assert (await stored_entries(store, lease))[0] == make_entry(1)
        await append_entries(store, claimed, 1, make_entry(2))
    assert len(store_log_lines(caplog)) == 3, "deleted; cannot be written; can be written again"


async def test_file_that_is_no_database_is_refused_until_removed(
    tmp_path: Path, sqlite: SqliteStore
) -> None:
    lease = await sqlite.create(new_session())
    text = "not a database, but a text that is long enough to be one" * 20
    (tmp_path / "text").write_text(text)
    os.replace(tmp_path / "text", tmp_path / "store.db")
    with pytest.raises(StoreUnavailable, match="not a database"):
        await append_entries(sqlite, lease, 0, make_entry(1))
    await wait_for_health(sqlite, available=False)
    assert (tmp_path / "store.db").read_text() == text
    (tmp_path / "store.db").unlink()
    await wait_for_health(sqlite, available=True)
    await append_entries(sqlite, await sqlite.create(new_session()), 0, make_entry(1))


async def test_deleted_target_of_a_symlink_is_detected(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "store.db").symlink_to(tmp_path / "real" / "store.db")
    async with open_at(url_of(tmp_path)) as store:
        lease = await store.create(new_session())
        await append_entries(store, lease, 0, make_entry(1))
        unlink_files(tmp_path / "real", "")
        with pytest.raises(StoreReplaced):
            await append_entries(store, lease, 1, make_entry(2))


async def test_replaced_file_is_logged_as_a_warning(
    sqlite: SqliteStore, tmp_path: Path, caplog: Any
) -> None:
    """Warnings are shown on the operator's page, too."""
    unlink_files(tmp_path, "")
    await sqlite.find("sess_1")
    (record,) = [r for r in caplog.records if r.name.startswith("continuo.realtime.store")]
    assert record.levelno == logging.WARNING

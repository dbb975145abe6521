"""Tests of stores that another version has written: a SQLite file of an older layout is migrated,
also if the process is killed meanwhile, and what no migration leads from is refused by name."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.store import (
    StoredResponse,
    StoreUnusable,
    UnknownLayout,
    back_up,
    check_store,
    keys,
    open_administration,
    open_store,
)
from continuo.realtime.store.redis.store import RedisStore
from continuo.realtime.store.sqlite import migrations
from continuo.realtime.store.sqlite.file import connect
from tests.frozen import store as frozen
from tests.support.redis_process import RedisProcess
from tests.support.store_records import append_entries, make_entry, new_session

pytestmark = [pytest.mark.process, pytest.mark.redis]

ROOT = Path(__file__).parents[3]
LAYOUT = keys.LAYOUT


def run_until_killed(script: str, *args: str) -> None:
    """Run a Python script in another process, which must kill itself."""
    done = subprocess.run([sys.executable, "-c", script, *args], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


# ---------------------------------------------------------------- SQLite

KILLED_AT_COMMIT = """
import os, signal, sqlite3, sys
from pathlib import Path
from continuo.realtime.store import keys
from continuo.realtime.store.sqlite import file, migrations

path, moment, sql = sys.argv[1:]
if sql:
    migrations._MIGRATIONS = (lambda db: db.execute(sql),)
    keys.LAYOUT += 1

class Connection(sqlite3.Connection):
    def commit(self):
        if moment == "committed":
            super().commit()
        os.kill(os.getpid(), signal.SIGKILL)

connect = sqlite3.connect
sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Connection)
file.connect(Path(path), "normal")
"""
ADD_NOTE = "ALTER TABLE sessions ADD COLUMN note TEXT NOT NULL DEFAULT 'new'"
"""A migration to the layout after this one."""


def dump(file: Path) -> frozen.Dump:
    with contextlib.closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return frozen.sqlite_dump(file)


def set_layout(file: Path, layout: int) -> None:
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA user_version = {layout}")


def read_layout(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


@pytest.fixture
def next_layout(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have a migration to another layout."""
    monkeypatch.setattr(migrations, "_MIGRATIONS", (lambda db: db.execute(ADD_NOTE),))
    monkeypatch.setattr(keys, "LAYOUT", LAYOUT + 1)
    return LAYOUT + 1


def test_there_are_no_migrations_before_the_first_release() -> None:
    assert migrations._MIGRATIONS == ()


async def test_older_file_is_migrated_and_loses_nothing(
    tmp_path: Path, next_layout: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "store.db"
    url = frozen.unexpired_sqlite_copy(tmp_path)
    expected = dump(file)
    for session in expected["sessions"]:
        session["note"] = "new"
    assert await check_store(url, "normal") == f"{file}, will be migrated from layout {LAYOUT}"
    connect(file, "normal").close()
    assert read_layout(file) == next_layout
    assert dump(file) == expected
    assert f"migrated from layout {LAYOUT} to layout {next_layout}" in caplog.text
    connect(file, "normal").close()
    assert dump(file) == expected, "a migration is applied once"


@pytest.mark.usefixtures("next_layout")
def test_new_file_has_the_present_layout_without_migrations(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    connect(file, "normal").close()
    assert read_layout(file) == LAYOUT + 1
    with contextlib.closing(sqlite3.connect(file)) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(sessions)")]
    assert "note" not in columns


@pytest.mark.parametrize("moment", ["uncommitted", "committed"])
def test_killed_migration_of_a_file_starts_again_and_loses_nothing(
    tmp_path: Path, next_layout: int, moment: str
) -> None:
    file = tmp_path / "store.db"
    frozen.unexpired_sqlite_copy(tmp_path)
    expected = dump(file)
    for session in expected["sessions"]:
        session["note"] = "new"
    run_until_killed(KILLED_AT_COMMIT, str(file), moment, ADD_NOTE)
    assert read_layout(file) == (next_layout if moment == "committed" else LAYOUT)
    connect(file, "normal").close()
    assert read_layout(file) == next_layout
    assert dump(file) == expected


@pytest.mark.parametrize("moment", ["uncommitted", "committed"])
def test_killed_creation_of_a_file_is_completed(tmp_path: Path, moment: str) -> None:
    file = tmp_path / "store.db"
    run_until_killed(KILLED_AT_COMMIT, str(file), moment, "")
    assert read_layout(file) == (LAYOUT if moment == "committed" else 0)
    connect(file, "normal").close()
    assert read_layout(file) == LAYOUT
    assert len(dump(file)["store"]) == 1, "one epoch"


@pytest.mark.parametrize("layout", [1, LAYOUT - 1, LAYOUT + 1])
async def test_file_of_another_version_is_refused_by_name(tmp_path: Path, layout: int) -> None:
    file = tmp_path / "store.db"
    url = f"sqlite:///{file}"
    store = await open_store(url)
    lease = await store.create(new_session())
    await store.aclose()
    set_layout(file, layout)
    before = dump(file)
    for call in (
        open_store(url),
        check_store(url, "normal"),
        open_administration(url).compute_stats(),
        back_up(open_administration(url), tmp_path / "backup"),
    ):
        with pytest.raises(StoreUnusable) as refused:
            await call
        assert str(refused.value) == (
            f"the store {file} cannot be used: it is stored in layout {layout} by another version "
            f"of Continuo; this version stores in layout {LAYOUT}"
        )
    assert dump(file) == before
    set_layout(file, LAYOUT)
    store = await open_store(url)
    await append_entries(store, lease, 0, make_entry(1))
    await store.aclose()


# ---------------------------------------------------------------- Redis


@pytest.fixture
async def store(redis: RedisProcess) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(redis.url)
    yield store
    await store.aclose()


@pytest.mark.parametrize("layout", [LAYOUT - 1, LAYOUT + 1])
async def test_session_of_another_version_is_refused_by_name_and_stays_unchanged(
    redis: RedisProcess, store: RedisStore, layout: int
) -> None:
    lease = await store.create(new_session())
    async with redis.client() as client:
        await client.hset(keys.session_keys(lease.session).meta, "layout", layout)
    message = (
        f"session {lease.session} is stored in layout {layout} by another version of Continuo; "
        f"this version stores in layout {LAYOUT}"
    )
    for call in (store.load(lease.session), store.claim(lease.session, "gate-2", ttl_s=60)):
        with pytest.raises(UnknownLayout) as refused:
            await call
        assert str(refused.value) == message
        assert refused.value.retryable, "another gateway may read it"
    found = await store.find(lease.session)
    assert found is not None
    assert (found.owner, found.fence) == (lease.owner, lease.fence)
    assert store.is_available, "other sessions can be used"


@pytest.mark.parametrize("layout", [LAYOUT - 1, LAYOUT + 1])
async def test_response_of_another_version_is_refused_by_name(
    redis: RedisProcess, store: RedisStore, layout: int
) -> None:
    response = StoredResponse(id="resp_other", tenant="acme")
    async with redis.client() as client:
        stored = bytearray(msgspec.msgpack.encode(response))
        assert stored[1] == LAYOUT
        stored[1] = layout
        await client.set(keys.response_key("resp_other"), bytes(stored))
    with pytest.raises(UnknownLayout, match=f"response resp_other is stored in layout {layout}"):
        await store.find_response("resp_other")


async def test_redis_of_a_newer_version_is_refused_by_name_at_start(redis: RedisProcess) -> None:
    await (await open_store(redis.url)).aclose()
    newer = str(LAYOUT + 1).encode()
    async with redis.client() as client:
        assert await client.get(keys.LAYOUT_KEY) == str(LAYOUT).encode()
        await client.set(keys.LAYOUT_KEY, newer)
        try:
            with pytest.raises(StoreUnusable) as refused:
                await open_store(redis.url)
            assert await client.get(keys.LAYOUT_KEY) == newer
        finally:
            await client.set(keys.LAYOUT_KEY, LAYOUT)
    assert str(refused.value) == (
        f"the data in Redis is stored in layout {LAYOUT + 1} by another version of Continuo; this "
        f"version stores in layout {LAYOUT}"
    )

"""Tests of backup, restore, vacuum and stats, from each store to each other."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.store import (
    DuplicateWrite,
    IdempotentRequest,
    RestoreResult,
    StoreAdministration,
    StoredEvents,
    StoredResponse,
    StoreUnusable,
    UnknownLayout,
    WriteBatch,
    back_up,
    delete_tenant,
    keys,
    open_administration,
    open_store,
    restore,
)
from continuo.realtime.store.backup_file import ResponseRecord, SessionRecord, read_backup
from continuo.realtime.store.codec import digest
from continuo.realtime.store.sqlite import migrations
from tests.frozen import store as frozen
from tests.support.redis_process import RedisProcess, running_redis
from tests.support.store_records import append_entries, make_entry, new_session, response_checkpoint

MakeUrl = Callable[[str], str]


@asynccontextmanager
async def administration(url: str, *, create: bool = False) -> AsyncIterator[StoreAdministration]:
    store = open_administration(url, create=create)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def target_redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    async with running_redis(tmp_path / "target") as process:
        yield process


@pytest.fixture(params=["sqlite", "redis"])
def target_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'restored.db'}"
    return request.getfixturevalue("target_redis").url


@pytest.fixture(params=["sqlite", "redis"])
async def source_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'source.db'}"
    else:
        async with running_redis(tmp_path / "source") as process:
            yield process.url


def comparable(file: Path) -> list[SessionRecord | ResponseRecord]:
    """The records of a backup in the order of their ids, without what a restore changes."""
    records = [
        msgspec.structs.replace(record, fence=0, epoch=0, remaining_ms=0)
        if isinstance(record, SessionRecord)
        else msgspec.structs.replace(record, remaining_ms=0)
        for record in read_backup(file)
    ]
    return sorted(
        records, key=lambda each: each.id if isinstance(each, SessionRecord) else each.response.id
    )


async def check_tenants_are_indexed(
    url: str, records: list[SessionRecord | ResponseRecord]
) -> None:
    """Restored records count for their tenant, and are deleted with it."""
    sessions = [each for each in records if isinstance(each, SessionRecord)]
    responses = [each.response for each in records if isinstance(each, ResponseRecord)]
    store = await open_store(url)
    try:
        for tenant in {each.tenant for each in (*sessions, *responses)}:
            own = {each.id for each in sessions if each.tenant == tenant}
            assert set(await store.tenants.list_sessions(tenant)) == own
            held = await store.tenants.measure(tenant)
            assert held.sessions == len(own)
            assert held.responses == sum(each.tenant == tenant for each in responses)
            await delete_tenant(store, tenant)
            held = await store.tenants.measure(tenant)
            assert (held.sessions, held.responses) == (0, 0)
    finally:
        await store.aclose()


@pytest.mark.process
@pytest.mark.redis
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_restored_store_has_all_that_was_backed_up(
    kind: str, redis: RedisProcess, target_url: str, tmp_path: Path
) -> None:
    """The frozen stores have every kind of record."""
    if kind == "sqlite":
        source = await asyncio.to_thread(frozen.unexpired_sqlite_copy, tmp_path)
    else:
        await asyncio.to_thread(frozen.redis_load, redis.port)
        source = redis.url
    file, again = tmp_path / "backup", tmp_path / "again"
    async with administration(source) as store:
        end = await back_up(store, file)
    assert end.sessions == 5
    assert end.responses == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    total = end.sessions + end.responses
    async with administration(target_url, create=True) as store:
        assert await restore(store, file) == RestoreResult(restored=total, skipped=0)
        assert await restore(store, file) == RestoreResult(restored=0, skipped=total)
        await back_up(store, again)
    assert comparable(again) == comparable(file)
    await check_tenants_are_indexed(target_url, comparable(file))
    assert any(
        record.requests and record.entries and record.events.bodies
        for record in comparable(file)
        if isinstance(record, SessionRecord)
    )


@pytest.mark.process
@pytest.mark.redis
async def test_restored_session_continues_under_a_new_lease_and_epoch(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    store = await open_store(source_url)
    lease = await store.create(new_session(secret=b"\0\xff" * 16, state=b"settings"))
    request = IdempotentRequest("event_1", digest(b"content"), b"\xfe\0result")
    batch = WriteBatch(
        kept_entries=0,
        entries=(make_entry(1), make_entry(2)),
        request=request,
        started_responses=(response_checkpoint(),),
        events=StoredEvents(0, (b"one", b"two")),
    )
    await store.write(lease, batch)
    assert await store.journal(lease, "resp_1", 0, (7, 8, 9)) == 3
    kept = StoredResponse(id="resp_kept", tenant="acme", entries=(b"\0\xff",), body=b"body")
    await store.put_response(kept, 600)
    before = await store.load(lease.session)
    assert before is not None
    await store.aclose()

    async with administration(source_url) as admin:
        end = await back_up(admin, tmp_path / "backup")
    assert (end.sessions, end.responses) == (1, 1)
    async with administration(target_url, create=True) as admin:
        await restore(admin, tmp_path / "backup")

    store = await open_store(target_url)
    after = await store.load(lease.session)
    assert after is not None
    assert (after.state, after.entries, after.events) == (b"settings", batch.entries, before.events)
    assert after.running_responses == before.running_responses
    assert after.metadata.secret == before.metadata.secret
    assert after.metadata.is_parked
    assert after.metadata.epoch > lease.fence, "event ids issued after the backup are still valid"
    remaining_ms = before.metadata.deadline_ms - before.metadata.created_ms
    assert abs(after.metadata.deadline_ms - before.metadata.deadline_ms) < remaining_ms / 10
    assert await store.find_response("resp_kept") == kept
    new_lease = await store.claim(lease.session, "gate-2", ttl_s=60)
    assert new_lease.fence > lease.fence
    again = await store.write(new_lease, WriteBatch(kept_entries=2, request=request))
    assert again == DuplicateWrite(request.result)
    assert await store.journal(new_lease, "resp_1", 2, (9, 10)) == 4
    await append_entries(store, new_lease, 2, make_entry(3))
    await store.delete(new_lease)
    await store.aclose()
    async with administration(target_url) as admin:
        assert await restore(admin, tmp_path / "backup") == RestoreResult(0, 2), "not resurrected"


@pytest.mark.process
@pytest.mark.redis
async def test_expired_sessions_are_neither_counted_nor_backed_up_and_vacuum_removes_them(
    source_url: str, tmp_path: Path
) -> None:
    store = await open_store(source_url)
    lasting = await store.create(new_session(tenant="umbrella"))
    await append_entries(store, lasting, 0, *[make_entry(n) for n in range(3)])
    await store.extend_deadline(lasting, 60, is_parked=True)
    await store.write(lasting, WriteBatch(started_responses=(response_checkpoint(),)))
    for _ in range(5):
        lease = await store.create(new_session(ttl_s=0.2))
        await append_entries(store, lease, 0, bytes(200_000))
    deleted = await store.create(new_session())
    await store.delete(deleted)
    await asyncio.sleep(0.4)
    await store.aclose()
    async with administration(source_url) as admin:
        end = await back_up(admin, tmp_path / "backup")
        stats = await admin.compute_stats()
        freed = await admin.vacuum()
        size_bytes = (await admin.compute_stats()).size_bytes
    assert (end.sessions, end.responses) == (1, 0)
    assert (stats.sessions, stats.parked, stats.entries) == (1, 1, 3)
    assert stats.running_responses == 1
    assert {name: each.entries for name, each in stats.tenants.items()} == {"umbrella": 3}
    assert freed.expired_sessions == 5
    assert freed.size_before_bytes - freed.size_after_bytes > 800_000
    assert size_bytes < stats.size_bytes


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "longer"])
async def test_damaged_backup_is_refused_before_anything_is_restored(
    damage: str, tmp_path: Path
) -> None:
    source = frozen.unexpired_sqlite_copy(tmp_path)
    file, url = tmp_path / "backup", f"sqlite:///{tmp_path / 'restored.db'}"
    async with administration(source) as store:
        await back_up(store, file)
    data = bytearray(file.read_bytes())
    match damage:
        case "cut":
            del data[-20:]
        case "flipped":
            data[len(data) // 2] ^= 1
        case "empty":
            data.clear()
        case _:
            data += b"\1\0\0\0\0"
    file.write_bytes(data)
    async with administration(url, create=True) as store:
        with pytest.raises(StoreUnusable, match=str(file)):
            await restore(store, file)
    assert not (tmp_path / "restored.db").exists()


async def test_failed_backup_keeps_the_file_before(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_bytes(b"before")
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be one")
    async with administration(f"sqlite:///{tmp_path / 'text'}") as store:
        with pytest.raises(StoreUnusable, match="not a database"):
            await back_up(store, file)
    assert file.read_bytes() == b"before"
    assert set(os.listdir(tmp_path)) == {"backup", "text"}


@pytest.mark.parametrize("url", ["memory", "sqlite://:memory:", "mysql://me:hunter2@host/db"])
def test_store_without_a_file_or_redis_is_refused(url: str) -> None:
    with pytest.raises(StoreUnusable) as refused:
        open_administration(url)
    assert "hunter2" not in str(refused.value)


async def test_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="does not exist"):
        open_administration(f"sqlite:///{tmp_path / 'none.db'}")
    assert not os.listdir(tmp_path)


async def test_stats_do_not_migrate_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = frozen.unexpired_sqlite_copy(tmp_path)
    older = keys.LAYOUT
    monkeypatch.setattr(migrations, "_MIGRATIONS", (lambda db: db.execute("DROP TABLE entries"),))
    monkeypatch.setattr(keys, "LAYOUT", older + 1)
    async with administration(url) as store:
        stats = await store.compute_stats()
    assert (stats.layout, stats.sessions) == (older, 5)
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (older,)


@pytest.mark.process
@pytest.mark.redis
async def test_session_of_another_version_is_refused_by_name(
    redis: RedisProcess, tmp_path: Path
) -> None:
    store = await open_store(redis.url)
    lease = await store.create(new_session())
    await store.aclose()
    async with redis.client() as client:
        await client.hset(f"continuo:{{{lease.session}}}:meta", "layout", 99)
    async with administration(redis.url) as admin:
        with pytest.raises(UnknownLayout, match="layout 99"):
            await back_up(admin, tmp_path / "backup")
    async with redis.client() as client:
        await client.flushall()
    assert not os.listdir(tmp_path)

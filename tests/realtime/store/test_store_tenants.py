"""Records of tenants in every store: usage, token buckets, sessions and responses."""

import asyncio

import pytest

from continuo.realtime.store import (
    BucketCharge,
    SessionEnded,
    SessionNotFound,
    Store,
    StoredEvents,
    StoredResponse,
    TenantHoldings,
    TenantUsage,
    WriteBatch,
    delete_tenant,
    keys,
    open_store,
)
from tests.support.redis_process import RedisProcess
from tests.support.store_records import append_entries, new_session, response_checkpoint


@pytest.fixture
def tenant() -> str:
    """Return a tenant of this test alone: all tests share one Redis."""
    return new_session().id.replace("sess", "tenant {a}")


async def test_usage_adds_up_by_tenant(store: Store, tenant: str) -> None:
    assert await store.tenants.read_usage(tenant) == TenantUsage()
    first = TenantUsage(requests=1, computed_tokens=10, generated_tokens=3)
    await store.tenants.add_usage({tenant: first, f"{tenant}2": TenantUsage(refused=9)})
    await store.tenants.add_usage({tenant: TenantUsage(cached_tokens=5, computed_tokens=10**12)})
    assert await store.tenants.read_usage(tenant) == TenantUsage(
        requests=1, computed_tokens=10**12 + 10, cached_tokens=5, generated_tokens=3
    )


async def test_shared_bucket_refills_and_may_be_in_debt(store: Store, tenant: str) -> None:
    def charge(amount: float, kind: str = "requests") -> list[BucketCharge]:
        return [BucketCharge(tenant, kind, 6000, amount)]  # type: ignore[arg-type]

    assert await store.tenants.charge_buckets(charge(100)) == [5900]
    (level,) = await store.tenants.charge_buckets(charge(0))
    assert 5900 <= level < 5950
    await asyncio.sleep(0.1)
    (refilled,) = await store.tenants.charge_buckets(charge(0))
    assert level + 9 <= refilled < level + 60, "100 a second"
    levels = await store.tenants.charge_buckets(
        [*charge(9000), *charge(0), *charge(1, "tokens"), *charge(-1, "tokens")]
    )
    assert -3200 < levels[0] <= levels[1] < -3000
    assert levels[2:] == pytest.approx([5999, 6000], abs=0.5)


async def test_holdings_count_sessions_responses_and_bytes(store: Store, tenant: str) -> None:
    assert await store.tenants.measure(tenant) == TenantHoldings()
    leases = [await store.create(new_session(tenant=tenant)) for _ in range(3)]
    await store.create(new_session(tenant=f"{tenant}2"))
    empty = await store.tenants.measure(tenant)
    assert (empty.sessions, empty.responses) == (3, 0)
    assert await store.tenants.count_sessions(tenant) == 3
    assert set(await store.tenants.list_sessions(tenant)) == {one.session for one in leases}
    await append_entries(store, leases[0], 0, b"x" * 50_000)
    stored = StoredResponse(id=f"resp_{tenant}", tenant=tenant, body=b"x" * 20_000)
    await store.put_response(stored, 3600)
    await store.put_response(stored, 3600)
    full = await store.tenants.measure(tenant)
    assert (full.sessions, full.responses) == (3, 1)
    assert 70_000 <= full.stored_bytes - empty.stored_bytes < 90_000
    await store.delete(leases[0])
    await store.force_delete(leases[1].session)
    after = await store.tenants.measure(tenant)
    assert (after.sessions, after.responses) == (1, 1)
    assert await store.tenants.count_sessions(tenant) == 1
    await store.put_response(stored, 0)
    await asyncio.sleep(0.05)
    await store.sweep(10)
    assert (await store.tenants.measure(tenant)).responses == 0


async def test_expired_session_is_no_longer_counted(store: Store, tenant: str) -> None:
    await store.create(new_session(tenant=tenant, ttl_s=0.05))
    await asyncio.sleep(0.1)
    while (await store.sweep(100)).examined:
        pass
    assert await store.tenants.count_sessions(tenant) == 0


async def test_deleted_tenant_leaves_nothing_but_tombstones(store: Store, tenant: str) -> None:
    kept = await store.create(new_session(tenant=f"{tenant}2"))
    lease = await store.create(new_session(tenant=tenant, state=b"canary"))
    await store.write(
        lease,
        WriteBatch(
            kept_entries=0,
            entries=(b"canary",),
            events=StoredEvents(0, (b"canary",)),
            started_responses=(response_checkpoint(),),
        ),
    )
    stored = StoredResponse(id=f"resp_{tenant}", tenant=tenant, body=b"canary")
    await store.put_response(stored, 3600)
    await store.tenants.add_usage({tenant: TenantUsage(requests=5)})
    await store.tenants.charge_buckets([BucketCharge(tenant, "requests", 60, 30)])
    deleted = await delete_tenant(store, tenant)
    assert (deleted.sessions, deleted.responses) == (1, 1)
    assert await store.tenants.measure(tenant) == TenantHoldings()
    assert await store.tenants.read_usage(tenant) == TenantUsage()
    assert await store.find(lease.session) is None
    assert await store.find_response(stored.id) is None
    with pytest.raises((SessionEnded, SessionNotFound)):
        await store.confirm(lease)
    await store.confirm(kept)
    assert tenant in await store.tenants.list_deletions(60)
    await asyncio.sleep(0.02)
    assert await store.tenants.list_deletions(0.001) == {}
    assert (await delete_tenant(store, tenant)).sessions == 0
    assert await store.tenants.charge_buckets([BucketCharge(tenant, "requests", 60, 0)]) == [60]


async def test_nothing_of_a_deleted_tenant_is_left_in_redis(
    redis: RedisProcess, tenant: str
) -> None:
    store = await open_store(redis.url)
    lease = await store.create(new_session(tenant=tenant))
    await append_entries(store, lease, 0, b"canary")
    await store.put_response(StoredResponse(id="resp_canary", tenant=tenant), 3600)
    await delete_tenant(store, tenant)
    async with redis.client() as client:
        names = [name async for name in client.scan_iter(match="*")]
        assert not [name for name in names if tenant.encode() in name or b"canary" in name]
        meta = await client.hgetall(keys.session_keys(lease.session).meta)
        assert meta.keys() == {b"owner", b"fence", b"deadline"}
    await store.aclose()

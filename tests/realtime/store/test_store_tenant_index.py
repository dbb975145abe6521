"""The set of a tenant's sessions in Redis has the sessions that exist, and no others, also when a
call is cut short or refused half-way."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
from redis.asyncio import Redis

from continuo.realtime.store import (
    NewSession,
    SessionExists,
    SessionLease,
    Store,
    StoreUnavailable,
    WriteBatch,
    delete_tenant,
    keys,
    open_store,
)
from tests.faults.proxy import Proxy
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.store_records import new_session
from tests.support.store_refusals import create_acl_user, run_commands

pytestmark = [needs_redis, pytest.mark.redis]

WHOLE = WriteBatch(kept_entries=0, entries=(), state=b"state")
CUT_EVERY_BYTES = 8
"""Two short replies of Redis: numbers of one digit."""


@pytest.fixture
def tenant() -> str:
    """Return a tenant of this test alone: all tests share one Redis."""
    return new_session().id.replace("sess", "tenant {a}")


@pytest.fixture
async def store(redis: RedisProcess) -> AsyncIterator[Store]:
    store = await open_store(redis.url)
    yield store
    await store.aclose()


class Call:
    """A call of the store that creates or removes the session `new`."""

    def __init__(self, new: NewSession, lease: SessionLease | None) -> None:
        self.new = new
        self._lease = lease

    @property
    def lease(self) -> SessionLease:
        assert self._lease is not None
        return self._lease

    async def create(self, store: Store) -> None:
        await store.create(self.new)

    async def recreate(self, store: Store) -> None:
        await store.recreate(self.lease, self.new, WHOLE, expected_fence=0)

    async def delete(self, store: Store) -> None:
        await store.delete(self.lease)

    async def force_delete(self, store: Store) -> None:
        await store.force_delete(self.new.id)

    async def sweep(self, store: Store) -> None:
        await store.sweep(keys.SWEEP_MAX)


StoreCall = Callable[[Call, Store], Awaitable[None]]
CALLS: list[StoreCall] = [
    Call.create,
    Call.recreate,
    Call.delete,
    Call.force_delete,
    Call.sweep,
]


async def prepare(store: Store, client: Redis, tenant: str, call: StoreCall) -> Call:
    """Bring a session into the state that the call needs: none, lost, expired, or present."""
    await store.sweep(keys.SWEEP_MAX)  # what the call before has left
    if call is Call.create:
        return Call(new_session(tenant=tenant), None)
    new = new_session(tenant=tenant, ttl_s=0 if call is Call.sweep else 3600)
    lease = await store.create(new)
    if call is Call.recreate:
        await client.delete(*keys.session_keys(new.id))
        await client.srem(keys.tenant_keys(tenant).sessions, new.id)
    return Call(new, lease)


async def check_index(client: Redis, tenant: str) -> None:
    """Compare the set of the tenant with the sessions of the tenant that exist."""
    indexed = cast(set[bytes], await client.smembers(keys.tenant_keys(tenant).sessions))
    present = set[str]()
    async for name in client.scan_iter(match=keys.scan_pattern("meta"), count=1000):
        if await client.hget(name, "tenant") == tenant.encode():
            present.add(keys.id_in_key(name.decode()))
    assert {session.decode() for session in indexed} == present


@contextlib.asynccontextmanager
async def cut_store(redis: RedisProcess, after_bytes: int) -> AsyncIterator[Store]:
    """Open a store whose connection to Redis is closed after so many bytes of replies."""
    async with Proxy(redis.port).running() as proxy:
        store = await open_store(f"redis://127.0.0.1:{proxy.port}/0")
        proxy.refuses_connections = True
        proxy.disconnect_after("down", after_bytes, fin=True)
        yield store
        await store.aclose()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_call_that_is_cut_short_leaves_the_index_right(
    redis: RedisProcess, store: Store, tenant: str, call: StoreCall
) -> None:
    """Wherever between its first byte and its last a call is cut."""
    async with redis.client() as client:
        for after_bytes in itertools.count(1, CUT_EVERY_BYTES):
            prepared = await prepare(store, client, tenant, call)
            async with cut_store(redis, after_bytes) as other:
                try:
                    await call(prepared, other)
                except StoreUnavailable:
                    await check_index(client, tenant)
                else:
                    break
    assert after_bytes > CUT_EVERY_BYTES, "no call was cut"
    assert after_bytes < 1000


async def test_refused_call_leaves_the_session_and_the_index(
    redis: RedisProcess, store: Store, tenant: str
) -> None:
    other = await open_store(await create_acl_user(redis))
    await run_commands(redis, (("ACL", "SETUSER", "gate", "-srem"),))
    async with redis.client() as client:
        for call in (Call.delete, Call.force_delete, Call.sweep):
            prepared = await prepare(store, client, tenant, call)
            with pytest.raises(StoreUnavailable):
                await call(prepared, other)
            await check_index(client, tenant)
            await call(prepared, store)
            await check_index(client, tenant)
    assert await store.tenants.count_sessions(tenant) == 0
    await other.aclose()


async def test_id_of_another_tenant_is_not_indexed(store: Store, tenant: str) -> None:
    taken = new_session(tenant=tenant)
    await store.create(taken)
    with pytest.raises(SessionExists):
        await store.create(new_session(id=taken.id, tenant=f"{tenant}2", owner="gate-2"))
    assert await store.tenants.list_sessions(tenant) == [taken.id]
    assert await store.tenants.list_sessions(f"{tenant}2") == []


async def test_ids_without_a_session_leave_the_index(
    redis: RedisProcess, store: Store, tenant: str
) -> None:
    """Older versions left some; others are of sessions that Redis deleted by their TTL.

    An id with a deadline may be of a session that an older version is about to create.
    """
    lease = await store.create(new_session(tenant=tenant))
    ids = [new_session().id for _ in range(50)]
    async with redis.client() as client:
        await client.sadd(keys.tenant_keys(tenant).sessions, *ids)
        await client.zadd(keys.DEADLINES_KEY, {ids[0]: 2**52})
        counts = [await store.tenants.count_sessions(tenant) for _ in range(40)]
        assert counts == sorted(counts, reverse=True), "ids leave a few at a time"
        assert counts[0] > 20
        assert counts[-1] == 2
        await client.zrem(keys.DEADLINES_KEY, ids[0])
        assert (await store.tenants.measure(tenant)).sessions == 1
    assert await store.tenants.list_sessions(tenant) == [lease.session]


async def test_tenant_is_deleted_whole_if_memory_cannot_be_measured(
    redis: RedisProcess, store: Store, tenant: str
) -> None:
    other = await open_store(await create_acl_user(redis))
    await run_commands(redis, (("ACL", "SETUSER", "gate", "-memory"),))
    lease = await store.create(new_session(tenant=tenant))
    assert (await other.tenants.measure(tenant)).sessions == 1
    assert await store.tenants.list_sessions(tenant) == [lease.session]
    await delete_tenant(other, tenant)
    assert await store.find(lease.session) is None
    await other.aclose()

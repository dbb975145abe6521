"""A replica that was promoted without the last writes: idle sessions are written to it again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import Snapshot, Store, StoreError
from tests.faults.deployment import open_when_available
from tests.faults.failover import SentinelStore
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient, connect_client
from tests.support.redis_process import needs_redis
from tests.support.waiting import poll_until

pytestmark = [pytest.mark.redis, pytest.mark.slow, needs_redis]

RECOVERED_S_MAX = 60.0
"""Bound for a busy machine; the gateway needs about a second."""
PARKED, DELETED = 0, 1
"""Indices of the clients that disconnect, and that delete an item, among the lost writes."""


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[SentinelStore]:
    store = SentinelStore(tmp_path)
    try:
        await store.start()
        yield store
    finally:
        store.stop()


@contextlib.asynccontextmanager
async def gateway(harness: EngineHarness, url: str) -> AsyncIterator[Registry]:
    template = harness.engine.text.template
    assert template is not None
    store = await open_when_available(url, "normal")
    limits = Limits(sweep_interval_s=0.1)
    registry = Registry(harness.engine, template, GenerationSettings(), limits, store)
    async with registry.running():
        yield registry
    await store.aclose()


async def open_client(registry: Registry) -> InProcessClient:
    client = await connect_client(registry)
    client.receive()
    await add_message(client, "u1")
    return client


async def add_message(client: InProcessClient, name: str) -> None:
    added = [event["type"] for event in client.socket.sent].count("conversation.item.done")
    client.send_message("hello", name)
    await client.socket.wait_for("conversation.item.done", added + 1)


async def load_patiently(store: Store, client: InProcessClient) -> Snapshot | None:
    """Load a session, however long the store is unavailable."""
    async with asyncio.timeout(RECOVERED_S_MAX):
        while True:
            with contextlib.suppress(StoreError):
                return await store.load(client.session_id)
            await asyncio.sleep(0.05)


async def load_all(store: Store, clients: Sequence[InProcessClient]) -> list[object]:
    found = [await load_patiently(store, client) for client in clients]
    return [
        each and (each.entries, each.state, each.events.next_offset, each.metadata.is_parked)
        for each in found
    ]


async def test_idle_sessions_are_written_again_to_a_promoted_replica(
    harness: EngineHarness, redis: SentinelStore
) -> None:
    """Connected, parked, begun since, and with a longer log than before: none sends anything."""
    async with gateway(harness, redis.url) as registry:
        clients = [await open_client(registry) for _ in range(40)]
        await redis.wait_until_replicated()
        await redis.cut_replication()
        for client in clients:
            await add_message(client, "u2")
        clients[DELETED].socket.push_event(type="conversation.item.delete", item_id="u1")
        await clients[DELETED].socket.wait_for("conversation.item.deleted")
        await clients[PARKED].disconnect()
        clients.append(await open_client(registry))
        other = await open_when_available(redis.url, "normal")
        try:
            before = await load_all(other, clients)
            redis.primary.kill()
            await redis.wait_until_promoted()

            async def is_as_before() -> bool:
                return await load_all(other, clients) == before

            await poll_until(is_as_before, RECOVERED_S_MAX)
        finally:
            await other.aclose()

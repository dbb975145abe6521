"""Several items of one request while the store fails: all are added, or none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import open_when_available
from tests.support.engines import EngineHarness
from tests.support.redis_process import RedisProcess, needs_redis, running_redis
from tests.support.waiting import poll_until, wait_until
from tests.support.web_servers import TENANTS, RunningServer, serve_harness

pytestmark = [pytest.mark.redis, pytest.mark.server, needs_redis]

ITEMS = 25
TRIALS = 3
RECOVERED_S_MAX = 30.0
"""Bound for a busy machine; the gateway needs less than a second."""


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    """A Redis whose log has a write before its reply is sent."""
    async with running_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as process:
        yield process


@pytest.fixture
async def server(harness: EngineHarness, redis: RedisProcess) -> AsyncIterator[RunningServer]:
    settings = GatewaySettings(
        tenants=TENANTS, served_model_name=("demo",), limits=Limits(sweep_interval_s=0.1)
    )
    store = await open_when_available(redis.url, "normal")
    async with serve_harness(harness, settings, store) as server:
        yield server
    await store.aclose()


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[ReconnectingClient]:
    """The client of the conversation: so no request has to claim it first."""
    client = ReconnectingClient(server.url)
    await client.connect()
    await client.add_message("x")
    yield client
    await client.disconnect()


async def count_stored(redis: RedisProcess, session_id: str) -> int:
    """Count the items that another gateway would find."""
    async with redis.client() as store:
        head = 1
        length = await store.execute_command("LLEN", f"continuo:{{{session_id}}}:log")
        assert isinstance(length, int)
        return length - head


@pytest.mark.parametrize("trial", range(TRIALS))
async def test_items_are_added_all_or_none_when_redis_dies(
    server: RunningServer, redis: RedisProcess, client: ReconnectingClient, trial: int
) -> None:
    """Redis dies as soon as it has written anything of the request."""
    path = f"/v1/conversations/{client.session_id}/items"
    items = [{"role": "user", "content": "x"}] * ITEMS
    written = redis.append_log_bytes
    adding = asyncio.create_task(server.request("POST", path, {"items": items}))
    await wait_until(lambda: redis.append_log_bytes > written)
    redis.kill()
    status, body = await adding
    await redis.start()
    assert status in (200, 503), body
    found = await count_stored(redis, client.session_id)
    assert found in (1, 1 + ITEMS), "a part of the items was added"
    expected = 1 + ITEMS if status == 200 else 1

    async def is_stored() -> bool:
        return await count_stored(redis, client.session_id) == expected

    await poll_until(is_stored, RECOVERED_S_MAX)

"""/health/ready tells the truth: whether somebody new would be taken."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from realtime.server.app import build
from realtime.server.entrance import Entrance
from realtime.server.settings import Settings
from realtime.store import open_store
from tests.realtime.served import Running, first, listening
from tests.realtime.store.redis_process import RedisProcess, needs_redis
from tests.support.engines import Bench

pytestmark = needs_redis
READY: tuple[int, dict[str, object]] = (200, {"status": "ready"})


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path, "--appendonly", "yes")
    await process.start()
    yield process
    process.stop()


@pytest.fixture
async def running(bench: Bench, redis: RedisProcess) -> AsyncIterator[Running]:
    store = await open_store(redis.url)
    app = build(bench.engine, Settings(), store)
    entrance = Entrance()
    entrance.open(app, bench.engine, store)
    async with listening(entrance, app.state.registry, Settings()) as running:
        yield running
    await store.aclose()


async def until(running: Running, wanted: tuple[int, dict[str, object]]) -> None:
    async with asyncio.timeout(20):
        while await running.get("/health/ready") != wanted:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("asleep", [False, True])
async def test_not_without_its_store(
    running: Running, redis: RedisProcess, bench: Bench, asleep: bool
) -> None:
    """It is noticed though nobody asks for anything; what runs goes on."""
    bench.runner.step_s = 0.01
    await until(running, READY)
    async with connect(running.url) as socket:
        await first(socket)
        answer = {"max_output_tokens": 300, "ignore_eos": True}
        await socket.send(json.dumps({"type": "response.create", "response": answer}))
        while (await first(socket))["type"] != "response.output_text.delta":
            pass
        if asleep:
            redis.pause()
        else:
            redis.stop()
        await until(running, (503, {"status": "no_store"}))
        assert (await running.get("/health/live"))[0] == 200
        if asleep:
            redis.go_on()
        else:
            await redis.start()
        await until(running, READY)
        while (event := await first(socket))["type"] != "response.done":
            assert event["type"] != "error", event

"""/health/ready tells the truth: whether somebody new would be taken."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.store import health_probe, open_store
from tests.support.engines import Bench
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.store_refusals import REFUSALS, Refusal, run, with_a_user
from tests.support.web_servers import Running, first, listening

READY: tuple[int, dict[str, object]] = (200, {"status": "ready"})
NO_STORE: tuple[int, dict[str, object]] = (503, {"status": "no_store"})


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path, "--appendonly", "yes")
    await process.start()
    yield process
    process.stop()


@pytest.fixture
async def running(bench: Bench, redis: RedisProcess) -> AsyncIterator[Running]:
    async with served(bench, await with_a_user(redis)) as running:
        yield running


@contextlib.asynccontextmanager
async def served(bench: Bench, url: str) -> AsyncIterator[Running]:
    store = await open_store(url)
    app = build_app(bench.engine, GatewaySettings(), store)
    entrance = ReadinessGate()
    entrance.set_app(app, bench.engine, store)
    async with listening(entrance, app.state.registry, GatewaySettings()) as running:
        yield running
    await store.aclose()


async def until(running: Running, wanted: tuple[int, dict[str, object]]) -> None:
    async with asyncio.timeout(20):
        while await running.get("/health/ready") != wanted:
            await asyncio.sleep(0.02)


@needs_redis
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
        await until(running, NO_STORE)
        assert (await running.get("/health/live"))[0] == 200
        if asleep:
            redis.go_on()
        else:
            await redis.start()
            await with_a_user(redis)
        await until(running, READY)
        while (event := await first(socket))["type"] != "response.done":
            assert event["type"] != "error", event


@needs_redis
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.name)
async def test_not_while_its_store_refuses_writes(
    running: Running,
    redis: RedisProcess,
    refusal: Refusal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is sent meanwhile is refused as what the store cannot take, never as a fault of ours,
    and accepted when it can. What was accepted before is there."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    await until(running, READY)
    async with connect(running.url) as socket:
        await first(socket)
        for n in range(4):
            await add(socket, f"item_{n}")
        await run(redis, refusal.begin)
        for n in range(4, 8):
            await until_refused(socket, f"item_{n}", at_once=n > 4 or refusal.name != "eviction")
        await until(running, NO_STORE)
        async with connect(running.url) as other:
            assert (await first(other))["error"]["code"] == "store_unavailable"
        await run(redis, refusal.mend)
        await until(running, READY)
        for n in range(4, 8):
            await add(socket, f"item_{n}")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    about = [one for one in caplog.records if "written" in one.getMessage()]
    assert len(about) == 2, "its beginning and its end"


async def add(socket: ClientConnection, name: str) -> None:
    await send(socket, name)
    while (event := await first(socket))["type"] != "conversation.item.done":
        assert event["type"] != "error", event


async def send(socket: ClientConnection, name: str) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))


async def until_refused(socket: ClientConnection, name: str, *, at_once: bool) -> None:
    """`at_once`: the store refuses it without having been probed."""
    while True:
        await send(socket, name)
        while (event := await first(socket))["type"] not in ("conversation.item.done", "error"):
            pass
        if event["type"] == "error":
            break
        assert not at_once, "accepted"
        name += "_"
        await asyncio.sleep(0.05)
    assert event["error"]["code"] == "store_unavailable", event
    assert event["error"]["type"] == "server_error"


async def test_an_embedded_store_that_cannot_be_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is where it was, and its folder is not."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    folder = tmp_path / "state"
    async with served(bench, f"sqlite:///{folder / 'store.db'}") as running:
        await until(running, READY)
        async with connect(running.url) as socket:
            await first(socket)
            await add(socket, "item_1")
            folder.rename(tmp_path / "away")
            await until(running, NO_STORE)
            await until_refused(socket, "item_2", at_once=True)
            (tmp_path / "away").rename(folder)
            await until(running, READY)
            await add(socket, "item_2")

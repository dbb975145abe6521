"""Readiness: /health/ready is 200 exactly while new sessions are accepted."""

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
    gate = ReadinessGate()
    gate.set_app(app, bench.engine, store)
    async with listening(gate, app.state.registry, GatewaySettings()) as running:
        yield running
    await store.aclose()


async def until_health(running: Running, expected: tuple[int, dict[str, object]]) -> None:
    async with asyncio.timeout(20):
        while await running.get("/health/ready") != expected:
            await asyncio.sleep(0.02)


@needs_redis
@pytest.mark.parametrize("is_paused", [False, True])
async def test_server_is_not_ready_while_its_store_is_down(
    running: Running, redis: RedisProcess, bench: Bench, is_paused: bool
) -> None:
    """The outage is detected without traffic; a response in progress continues."""
    bench.runner.step_s = 0.01
    await until_health(running, READY)
    async with connect(running.url) as socket:
        await first(socket)
        response = {"max_output_tokens": 300, "ignore_eos": True}
        await socket.send(json.dumps({"type": "response.create", "response": response}))
        while (await first(socket))["type"] != "response.output_text.delta":
            pass
        if is_paused:
            redis.pause()
        else:
            redis.stop()
        await until_health(running, NO_STORE)
        assert (await running.get("/health/live"))[0] == 200
        if is_paused:
            redis.go_on()
        else:
            await redis.start()
            await with_a_user(redis)
        await until_health(running, READY)
        while (event := await first(socket))["type"] != "response.done":
            assert event["type"] != "error", event


@needs_redis
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.name)
async def test_server_is_not_ready_while_its_store_refuses_writes(
    running: Running,
    redis: RedisProcess,
    refusal: Refusal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Items sent meanwhile are refused with store_unavailable, never logged as an internal error,
    and accepted afterwards. Items accepted before are kept."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    await until_health(running, READY)
    async with connect(running.url) as socket:
        await first(socket)
        for n in range(4):
            await add(socket, f"item_{n}")
        await run(redis, refusal.begin)
        for n in range(4, 8):
            await until_refused(socket, f"item_{n}", at_once=n > 4 or refusal.name != "eviction")
        await until_health(running, NO_STORE)
        async with connect(running.url) as other:
            assert (await first(other))["error"]["code"] == "store_unavailable"
        await run(redis, refusal.mend)
        await until_health(running, READY)
        for n in range(4, 8):
            await add(socket, f"item_{n}")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    messages = [one for one in caplog.records if "written" in one.getMessage()]
    assert len(messages) == 2, "one at the beginning of the outage, one at its end"


async def add(socket: ClientConnection, name: str) -> None:
    await send(socket, name)
    while (event := await first(socket))["type"] != "conversation.item.done":
        assert event["type"] != "error", event


async def send(socket: ClientConnection, name: str) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))


async def until_refused(socket: ClientConnection, name: str, *, at_once: bool) -> None:
    """Send items until one is refused; with `at_once` the first one must be."""
    while True:
        await send(socket, name)
        while (event := await first(socket))["type"] not in ("conversation.item.done", "error"):
            pass
        if event["type"] == "error":
            break
        assert not at_once, "the first item was accepted"
        name += "_"
        await asyncio.sleep(0.05)
    assert event["error"]["code"] == "store_unavailable", event
    assert event["error"]["type"] == "server_error"


async def test_server_is_not_ready_while_the_sqlite_folder_is_missing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps its file open while the folder is moved away."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    folder = tmp_path / "state"
    async with served(bench, f"sqlite:///{folder / 'store.db'}") as running:
        await until_health(running, READY)
        async with connect(running.url) as socket:
            await first(socket)
            await add(socket, "item_1")
            folder.rename(tmp_path / "away")
            await until_health(running, NO_STORE)
            await until_refused(socket, "item_2", at_once=True)
            (tmp_path / "away").rename(folder)
            await until_health(running, READY)
            await add(socket, "item_2")

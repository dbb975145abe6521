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
from tests.support.engines import EngineHarness
from tests.support.redis_process import RedisProcess, needs_redis, running_redis
from tests.support.store_refusals import STORE_FAILURES, StoreFailure, create_acl_user, run_commands
from tests.support.web_servers import RunningServer, receive_event, receive_until, serve_app

READY: tuple[int, dict[str, object]] = (200, {"status": "ready"})
NO_STORE: tuple[int, dict[str, object]] = (503, {"status": "no_store"})


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    async with running_redis(tmp_path, "--appendonly", "yes") as process:
        yield process


@pytest.fixture
async def running(bench: EngineHarness, redis: RedisProcess) -> AsyncIterator[RunningServer]:
    async with served(bench, await create_acl_user(redis)) as running:
        yield running


@contextlib.asynccontextmanager
async def served(bench: EngineHarness, url: str) -> AsyncIterator[RunningServer]:
    store = await open_store(url)
    app = build_app(bench.engine, GatewaySettings(), store)
    gate = ReadinessGate()
    gate.set_app(app, bench.engine, store)
    async with serve_app(gate, app.state.registry, GatewaySettings()) as running:
        yield running
    await store.aclose()


async def until_health(running: RunningServer, expected: tuple[int, dict[str, object]]) -> None:
    async with asyncio.timeout(20):
        while await running.get_json("/health/ready") != expected:
            await asyncio.sleep(0.02)


@needs_redis
@pytest.mark.parametrize("is_paused", [False, True])
async def test_server_is_not_ready_while_its_store_is_down(
    running: RunningServer, redis: RedisProcess, bench: EngineHarness, is_paused: bool
) -> None:
    """The outage is detected without traffic; a response in progress continues."""
    bench.runner.step_s = 0.01
    await until_health(running, READY)
    async with connect(running.url) as socket:
        await receive_event(socket)
        response = {"max_output_tokens": 300, "ignore_eos": True}
        await socket.send(json.dumps({"type": "response.create", "response": response}))
        await receive_until(socket, "response.output_text.delta")
        if is_paused:
            redis.pause()
        else:
            redis.stop()
        await until_health(running, NO_STORE)
        assert (await running.get_json("/health/live"))[0] == 200
        if is_paused:
            redis.resume()
        else:
            await redis.start()
            await create_acl_user(redis)
        await until_health(running, READY)
        while (event := await receive_event(socket))["type"] != "response.done":
            assert event["type"] != "error", event


@needs_redis
@pytest.mark.parametrize("refusal", STORE_FAILURES, ids=lambda one: one.name)
async def test_server_is_not_ready_while_its_store_refuses_writes(
    running: RunningServer,
    redis: RedisProcess,
    refusal: StoreFailure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Items sent meanwhile are refused with store_unavailable, never logged as an internal error,
    and accepted afterwards. Items accepted before are kept."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    await until_health(running, READY)
    async with connect(running.url) as socket:
        await receive_event(socket)
        for n in range(4):
            await add(socket, f"item_{n}")
        await run_commands(redis, refusal.start_commands)
        for n in range(4, 8):
            await until_refused(socket, f"item_{n}", at_once=n > 4 or refusal.name != "eviction")
        await until_health(running, NO_STORE)
        async with connect(running.url) as other:
            assert (await receive_event(other))["error"]["code"] == "store_unavailable"
        await run_commands(redis, refusal.stop_commands)
        await until_health(running, READY)
        for n in range(4, 8):
            await add(socket, f"item_{n}")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    messages = [one for one in caplog.records if "written" in one.getMessage()]
    assert len(messages) == 2, "one at the beginning of the outage, one at its end"


async def add(socket: ClientConnection, name: str) -> None:
    await send(socket, name)
    while (event := await receive_event(socket))["type"] != "conversation.item.done":
        assert event["type"] != "error", event


async def send(socket: ClientConnection, name: str) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))


async def until_refused(socket: ClientConnection, name: str, *, at_once: bool) -> None:
    """Send items until one is refused; with `at_once` the first one must be."""
    while True:
        await send(socket, name)
        while (event := await receive_event(socket))["type"] not in (
            "conversation.item.done",
            "error",
        ):
            pass
        if event["type"] == "error":
            break
        assert not at_once, "the first item was accepted"
        name += "_"
        await asyncio.sleep(0.05)
    assert event["error"]["code"] == "store_unavailable", event
    assert event["error"]["type"] == "server_error"


async def test_server_is_not_ready_while_the_sqlite_folder_is_missing(
    bench: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps its file open while the folder is moved away."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    folder = tmp_path / "state"
    async with served(bench, f"sqlite:///{folder / 'store.db'}") as running:
        await until_health(running, READY)
        async with connect(running.url) as socket:
            await receive_event(socket)
            await add(socket, "item_1")
            folder.rename(tmp_path / "away")
            await until_health(running, NO_STORE)
            await until_refused(socket, "item_2", at_once=True)
            (tmp_path / "away").rename(folder)
            await until_health(running, READY)
            await add(socket, "item_2")

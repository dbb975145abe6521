"""Readiness: /health/ready is 200 exactly while new sessions are accepted."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.registry import recovery
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.store import health_probe, open_store
from tests.support.clients import (
    LONG_RESPONSE,
    RealtimeClient,
    connect_realtime,
    open_realtime_session,
)
from tests.support.engines import EngineHarness
from tests.support.redis_process import RedisProcess, needs_redis, running_redis
from tests.support.store_refusals import STORE_FAILURES, StoreFailure, create_acl_user, run_commands
from tests.support.web_servers import RunningServer, serve_app

READY: tuple[int, dict[str, object]] = (200, {"status": "ready"})
RECOVERING: tuple[int, dict[str, object]] = (503, {"status": "recovering"})
NO_STORE: tuple[int, dict[str, object]] = (503, {"status": "no_store"})


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    async with running_redis(tmp_path, "--appendonly", "yes") as process:
        yield process


@pytest.fixture
async def server(harness: EngineHarness, redis: RedisProcess) -> AsyncIterator[RunningServer]:
    async with served(harness, await create_acl_user(redis)) as server:
        yield server


@contextlib.asynccontextmanager
async def served(harness: EngineHarness, url: str) -> AsyncIterator[RunningServer]:
    store = await open_store(url)
    app = build_app(harness.engine, GatewaySettings(), store)
    gate = ReadinessGate(AccessPolicy())
    gate.set_app(app, harness.engine.fleet, store, app.state.registry.recovery)
    async with serve_app(gate, app.state.registry, GatewaySettings()) as server:
        yield server
    await store.aclose()


async def until_health(server: RunningServer, expected: tuple[int, dict[str, object]]) -> None:
    async with asyncio.timeout(20):
        while await server.request("GET", "/health/ready", headers={}) != expected:
            await asyncio.sleep(0.02)


@needs_redis
@pytest.mark.parametrize("is_paused", [False, True])
async def test_server_is_not_ready_while_its_store_is_down(
    server: RunningServer, redis: RedisProcess, harness: EngineHarness, is_paused: bool
) -> None:
    """The outage is detected without traffic; a response in progress continues."""
    harness.runner.step_s = 0.01
    await until_health(server, READY)
    async with open_realtime_session(server.url) as client:
        response = await client.start_response(**LONG_RESPONSE)
        await client.wait_deltas(1)
        if is_paused:
            redis.pause()
        else:
            redis.stop()
        await until_health(server, NO_STORE)
        assert (await server.request("GET", "/health/live", headers={}))[0] == 200
        if is_paused:
            redis.resume()
        else:
            await redis.start()
            await create_acl_user(redis)
        await until_health(server, READY)
        await client.wait_response(response)


@needs_redis
async def test_server_is_recovering_until_its_sessions_are_in_an_emptied_store_again(
    server: RunningServer, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SESSIONS_PER_S", 5)
    await until_health(server, READY)
    async with open_realtime_session(server.url) as client:
        async with redis.client() as admin:
            await admin.flushall()
        await until_health(server, RECOVERING)
        await client.add_message("hello", "item_1")
        await until_health(server, READY)


@needs_redis
@pytest.mark.parametrize("refusal", STORE_FAILURES, ids=lambda one: one.name)
async def test_server_is_not_ready_while_its_store_refuses_writes(
    server: RunningServer,
    redis: RedisProcess,
    refusal: StoreFailure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Items sent meanwhile are refused with store_unavailable, never logged as an internal error,
    and accepted afterwards. Items accepted before are kept."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    await until_health(server, READY)
    async with open_realtime_session(server.url) as client:
        for n in range(4):
            await client.add_message("hello", f"item_{n}")
        await run_commands(redis, refusal.start_commands)
        for n in range(4, 8):
            await until_refused(client, f"item_{n}", at_once=n > 4 or refusal.name != "eviction")
        await until_health(server, NO_STORE)
        async with connect_realtime(server.url) as other:
            assert (await other.expect("error"))["error"]["code"] == "store_unavailable"
        await run_commands(redis, refusal.stop_commands)
        await until_health(server, READY)
        for n in range(4, 8):
            await client.add_message("hello", f"item_{n}")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    messages = [one.getMessage() for one in caplog.records]
    refused = [one for one in messages if "cannot be written" in one and "TimeoutError" not in one]
    assert len(refused) == 1, "one at the beginning of the outage"
    assert messages[-1].startswith("Redis can be written again")


async def until_refused(client: RealtimeClient, name: str, *, at_once: bool) -> None:
    """Send items until one is refused; with `at_once` the first one must be."""
    while True:
        await client.send_message("hello", name)
        event = await client.wait_for("conversation.item.done", "error")
        if event["type"] == "error":
            break
        assert not at_once, "the first item was accepted"
        name += "_"
        await asyncio.sleep(0.05)
    assert event["error"]["code"] == "store_unavailable", event
    assert event["error"]["type"] == "server_error"


@pytest.mark.long
async def test_server_is_not_ready_while_the_sqlite_folder_is_missing(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps its file open while the folder is moved away."""
    monkeypatch.setattr(health_probe, "HEALTHY_INTERVAL_S", 0.1)
    folder = tmp_path / "state"
    async with served(harness, f"sqlite:///{folder / 'store.db'}") as server:
        await until_health(server, READY)
        async with open_realtime_session(server.url) as client:
            await client.add_message("hello", "item_1")
            folder.rename(tmp_path / "away")
            await until_health(server, NO_STORE)
            await until_refused(client, "item_2", at_once=True)
            (tmp_path / "away").rename(folder)
            await until_health(server, READY)
            await client.add_message("hello", "item_2")

"""Requests to an engine that drains, with no other one: refused with 503 and `Retry-After`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuo.engine import EngineClient
from continuo.realtime.server.config.settings import GatewaySettings
from tests.engine.server.test_several_gateways import front
from tests.support.engines import EngineHarness
from tests.support.sessions import shared_store
from tests.support.waiting import wait_until
from tests.support.web_servers import TENANTS, RunningServer, serve_engine

pytestmark = pytest.mark.server

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/generate": {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}},
}
"""A request of each API that answers a failed turn with an HTTP error."""
RESPONSES = ("/v1/responses", {"input": "hello", "max_output_tokens": 4})


@pytest.fixture
async def engine(harness: EngineHarness) -> AsyncIterator[EngineClient]:
    """An engine client of another process than the one that drains the engine."""
    async with front(await harness.listen()) as engine:
        yield engine


@pytest.fixture
async def server(harness: EngineHarness, engine: EngineClient) -> AsyncIterator[RunningServer]:
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))
    async with serve_engine(engine, settings, await shared_store(harness)) as server:
        yield server


async def post(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[int, bool]:
    """Send a request. Returns the status, and whether there is a `Retry-After`."""
    status, headers, _ = await server.exchange("POST", path, {"model": "demo", **body})
    return status, "retry-after" in headers


async def test_engine_that_begins_to_drain_refuses_with_503(
    server: RunningServer, harness: EngineHarness
) -> None:
    """The gateway may not have been told yet, so the engine itself refuses the turns."""
    await harness.engine.fleet.drain()
    replies = await asyncio.gather(*(post(server, *request) for request in BODIES.items()))
    assert replies == [(503, True)] * len(BODIES)


async def test_gateway_whose_engines_all_drain_refuses_with_503(
    server: RunningServer, harness: EngineHarness, engine: EngineClient
) -> None:
    await harness.engine.fleet.drain()
    await wait_until(lambda: not engine.fleet.is_accepting_sessions)
    for path, body in (*BODIES.items(), RESPONSES):
        assert await post(server, path, body) == (503, True)

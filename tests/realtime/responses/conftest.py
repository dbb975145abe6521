"""Fixtures of the tests of the Responses API."""

from collections.abc import AsyncIterator

import pytest

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store
from tests.support.clients import ResponsesClient, connect_responses
from tests.support.engines import EngineHarness
from tests.support.sessions import shared_store
from tests.support.web_servers import RunningServer, serve_harness


@pytest.fixture
async def store(bench: EngineHarness) -> Store:
    return await shared_store(bench)


@pytest.fixture
async def running(
    bench: EngineHarness, gateway_settings: GatewaySettings
) -> AsyncIterator[RunningServer]:
    async with serve_harness(bench, gateway_settings) as running:
        yield running
    assert await bench.engine.list_sessions() == [], "nothing is left open in the engine"


@pytest.fixture
async def client(running: RunningServer) -> AsyncIterator[ResponsesClient]:
    async with connect_responses(running) as client:
        yield client

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
async def store(harness: EngineHarness) -> Store:
    return await shared_store(harness)


@pytest.fixture
async def server(
    harness: EngineHarness, gateway_settings: GatewaySettings
) -> AsyncIterator[RunningServer]:
    async with serve_harness(harness, gateway_settings) as server:
        yield server
    assert await harness.engine.fleet.list_sessions() == [], "nothing is left open in the engine"


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[ResponsesClient]:
    async with connect_responses(server) as client:
        yield client

"""Fixtures of the checks on real servers."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.config import EngineConfig
from continuo.engine.local_checkpoint import find_local_checkpoint
from tests.upstream.figures import add_figure
from tests.upstream.servers import SERVERS, RealServer, running_server


@pytest.fixture(scope="session")
def demo() -> Path:
    folder = find_local_checkpoint("demo")
    assert folder is not None
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=SERVERS)
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealServer]:
    async with running_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def own() -> AsyncIterator[EngineClient]:
    """Our own engine with the same model, in fp32: its greedy ids are the expected ones."""
    config = EngineConfig(model="demo", dtype="float32", device="cpu", threads=1)
    engine = await EngineClient.start(config)
    yield engine
    await engine.stop()


@pytest.fixture(scope="session")
def figure() -> Callable[[str], None]:
    """Return a function that adds a line to the figures of this run."""
    return add_figure

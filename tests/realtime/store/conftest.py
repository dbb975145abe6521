"""Stores: each contract test runs on all of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from realtime.store import Store, open_store
from tests.realtime.store.redis_process import PROGRAM, RedisProcess


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisProcess]:
    """One server for the tests that do it no harm."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    await process.start()
    yield process
    process.stop()


@pytest.fixture(params=["sqlite-file", "sqlite-memory", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite-file":
            return f"sqlite:///{tmp_path / 'state' / 'store.db'}"
        case "sqlite-memory":
            return "sqlite://:memory:"
        case _:
            return request.getfixturevalue("redis").url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    yield store
    await store.aclose()

"""Stores: each contract test runs on all of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.store import Store, open_store


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

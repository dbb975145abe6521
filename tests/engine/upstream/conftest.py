"""Fixtures of the tests of an engine on another server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.upstream import turn_requests
from tests.support.upstream_engines import FAKES, UpstreamHarness, upstream_engine


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_requests, "RETRY_S", (0.01,))


@pytest.fixture(params=FAKES)
async def harness(request: pytest.FixtureRequest, letters: Path) -> AsyncIterator[UpstreamHarness]:
    fake = FAKES[request.param]()
    fake.end_ids = frozenset()
    async with upstream_engine(letters, fake) as harness:
        yield harness

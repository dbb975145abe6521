"""A server on the engine of digests, to be thrown at."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fuzz.target import target
from tests.realtime.conftest import chat_folder
from tests.realtime.served import Running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("chatty"))


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Running]:
    async with target(folder) as running:
        yield running

"""Garbage collection of a server process."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from realtime.server import collection
from realtime.server.collection import collect


class Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, bool]]:
    """The collection of a server, fast; `quiet` is what the server says of itself."""
    monkeypatch.setattr(collection, "FREEZE_S", 0.01)
    monkeypatch.setattr(collection, "FULL_S", 0.0)
    thresholds, server = gc.get_threshold(), {"quiet": False}
    task = asyncio.create_task(collect(lambda: server["quiet"]))
    await asyncio.sleep(0)
    yield server
    task.cancel()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def frozen(many: int) -> None:
    """Wait until so many objects are frozen."""
    async with asyncio.timeout(20):
        while gc.get_freeze_count() < many:
            await asyncio.sleep(0.01)


async def test_what_is_alive_is_not_looked_at_again(collecting: dict[str, bool]) -> None:
    before = gc.get_freeze_count()
    sessions = [[number] for number in range(20_000)]
    await frozen(before + len(sessions))
    assert len(gc.get_objects()) < len(sessions), "what a full collection looks at"


async def test_young_cycles_are_collected(collecting: dict[str, bool]) -> None:
    gone = weakref.ref(Node())
    async with asyncio.timeout(20):
        while gone() is not None:
            await asyncio.sleep(0.01)


async def test_old_cycles_are_collected_when_no_client_is_connected(
    collecting: dict[str, bool],
) -> None:
    node = Node()
    gone = weakref.ref(node)
    before = gc.get_freeze_count()
    more = [[number] for number in range(10_000)]
    await frozen(before + len(more))
    del node
    await asyncio.sleep(0.1)
    assert gone() is not None, "a full collection would delay clients"
    collecting["quiet"] = True
    async with asyncio.timeout(20):
        while gone() is not None:
            await asyncio.sleep(0.01)

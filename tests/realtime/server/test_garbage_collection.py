"""Garbage collection of a server process."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.server import garbage_collection
from continuo.realtime.server.garbage_collection import collect_garbage


class Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The collection of a server, a hundred times as fast."""
    monkeypatch.setattr(garbage_collection, "FREEZE_INTERVAL_S", 0.01)
    thresholds = gc.get_threshold()
    task = asyncio.create_task(collect_garbage())
    await asyncio.sleep(0)
    yield
    task.cancel()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def frozen(many: int) -> None:
    """Wait until so many objects are frozen."""
    async with asyncio.timeout(20):
        while gc.get_freeze_count() < many:
            await asyncio.sleep(0.01)


async def test_what_is_alive_is_not_looked_at_again(collecting: None) -> None:
    before = gc.get_freeze_count()
    sessions = [[number] for number in range(20_000)]
    await frozen(before + len(sessions))
    assert len(gc.get_objects()) < len(sessions), "what a full collection looks at"


async def test_young_cycles_are_collected(collecting: None) -> None:
    gone = weakref.ref(Node())
    async with asyncio.timeout(20):
        while gone() is not None:
            await asyncio.sleep(0.01)


async def test_frozen_objects_are_freed_by_their_reference_counts(collecting: None) -> None:
    before = gc.get_freeze_count()
    sessions = [{number} for number in range(20_000)]
    gone = weakref.ref(sessions[0])
    await frozen(before + len(sessions))
    del sessions
    assert gone() is None
    assert gc.get_freeze_count() < before + 1_000

"""Garbage collection of a process with an event loop."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from continuo.engine import garbage_collection
from continuo.engine.garbage_collection import collect_garbage
from tests.support.waiting import wait_until


class Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.cycle = self


@pytest.fixture
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Run the garbage collection of a process with a hundredth of its interval."""
    monkeypatch.setattr(garbage_collection, "FREEZE_INTERVAL_S", 0.01)
    thresholds = gc.get_threshold()
    task = asyncio.create_task(collect_garbage())
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait([task])
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


async def until_frozen(count: int) -> None:
    """Wait until `count` objects are frozen."""
    await wait_until(lambda: gc.get_freeze_count() >= count)


async def test_live_objects_are_frozen_out_of_full_collections(collecting: None) -> None:
    before = gc.get_freeze_count()
    sessions = [[number] for number in range(20_000)]
    await until_frozen(before + len(sessions))
    assert len(gc.get_objects()) < len(sessions), "objects that a full collection visits"


async def test_young_cycles_are_collected(collecting: None) -> None:
    reference = weakref.ref(Node())
    await wait_until(lambda: reference() is None)


async def test_frozen_objects_are_freed_by_their_reference_counts(collecting: None) -> None:
    before = gc.get_freeze_count()
    sessions = [{number} for number in range(20_000)]
    reference = weakref.ref(sessions[0])
    await until_frozen(before + len(sessions))
    del sessions
    assert reference() is None
    assert gc.get_freeze_count() < before + 1_000

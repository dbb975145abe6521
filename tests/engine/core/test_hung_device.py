"""Tests of a hung device: the loop still answers pings, but no step completes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import Geometry
from continuo.engine.client import connection, router
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engine_sessions import recovered
from tests.support.engines import EngineHarness, running_engine
from tests.support.hanging_runner import HangingRunner
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

GEOMETRY = Geometry(64, 4, 200, VOCABULARY, 16, 1, 0)
PROMPT = [n % 90 for n in range(30)]


@pytest.fixture
async def harness(letters: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineHarness]:
    """Yield an engine that is pinged often, so that a hang is detected fast."""
    monkeypatch.setattr(router, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(connection, "DEVICE_HANG_S", 0.5)
    async with running_engine(letters, lambda: HangingRunner(GEOMETRY, step_s=0.01)) as harness:
        try:
            yield harness
        finally:
            harness.runner.may_compute.set()


async def start_turn_and_hang(
    harness: EngineHarness, sampling: Sampling
) -> "asyncio.Task[list[int]]":
    """Start a turn, and hang the device after its first ids. Returns the task that reads it."""
    engine, first = harness.engine, asyncio.Event()
    session = await engine.open()
    await engine.append(session, PROMPT)
    turn = await engine.generate(session, sampling)

    async def read_output() -> list[int]:
        output: list[int] = []
        async for piece in recovered(engine, turn, PROMPT):
            output += piece.ids
            if not first.is_set():
                harness.runner.may_compute.clear()
                first.set()
        return output

    reading = asyncio.create_task(read_output())
    await first.wait()
    return reading


async def test_hung_device_makes_the_engine_unavailable_until_it_recovers(
    harness: EngineHarness,
) -> None:
    reading = await start_turn_and_hang(harness, Sampling(max_tokens=60))
    await wait_until(lambda: not harness.engine.fleet.is_accepting_sessions, 30)
    assert not harness.engine.fleet.is_available
    assert not reading.done()
    harness.runner.may_compute.set()
    assert await reading == oracle(PROMPT, 60)
    await wait_until(lambda: harness.engine.fleet.is_accepting_sessions, 30)
    assert harness.launch_count == 1


async def test_engine_whose_device_hangs_for_long_is_restarted(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DISCONNECT_AFTER_S", 2.0)
    reading = await start_turn_and_hang(harness, Sampling(max_tokens=60))
    hung = harness.runner
    (child,) = harness.engine._router.connections
    await wait_until(lambda: not child.is_connected, 30)
    hung.may_compute.set()  # a process would be killed; a thread cannot be
    assert await reading == oracle(PROMPT, 60), "the turn continues on the new engine"
    assert harness.launch_count == 2
    assert harness.engine.fleet.is_accepting_sessions

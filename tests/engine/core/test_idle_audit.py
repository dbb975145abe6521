"""Tests of the idle audit: page ownership is audited when no work is owed, and only then.

The loop is real; an audit is due whenever one may run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import BatchResult, Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.server.assembly import EngineCore, assemble
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import (
    AppendIds,
    CommandDone,
    EngineEvent,
    Generate,
    GetStats,
    LoopCommand,
    OpenSession,
    Sampling,
    TurnEnded,
    TurnTokens,
)
from tests.support.digest_runner import VOCABULARY, DigestRunner

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


class LoopHarness:
    """An engine loop driven by the test alone."""

    def __init__(self, folder: Path, ahead: int) -> None:
        runner = DigestRunner(Geometry(64, 4, 200, VOCABULARY, 16, ahead, 0))
        self.parts: EngineCore[BatchResult] = assemble(
            runner, ModelText(str(folder)), EngineConfig()
        )
        self.events: list[EngineEvent] = []
        self._received = asyncio.Event()
        self._n = 0

    def receive(self, events: list[EngineEvent]) -> None:
        self.events += events
        self._received.set()

    def n(self) -> int:
        self._n += 1
        return self._n

    async def request(self, command: LoopCommand) -> CommandDone:
        self.parts.loop.enqueue([command])
        while True:
            for event in self.events:
                if isinstance(event, CommandDone) and event.n == command.n:
                    return event
            self._received.clear()
            await self._received.wait()

    async def run_turn(self) -> None:
        """Run one turn to its end."""
        for command in (
            OpenSession(self.n(), "s"),
            AppendIds(self.n(), "s", [1, 2, 3]),
            Generate(self.n(), "s", "turn", Sampling(max_tokens=30)),
        ):
            await self.request(command)
        while not any(isinstance(event, TurnEnded) for event in self.events):
            self._received.clear()
            await self._received.wait()

    async def failed_audits(self) -> int:
        stats = (await self.request(GetStats(self.n()))).stats
        assert stats is not None
        return stats.failed_audits


@contextlib.asynccontextmanager
async def running_loop(harness: LoopHarness) -> AsyncIterator[None]:
    parts = harness.parts
    running = asyncio.create_task(parts.loop.run(parts.sessions, harness.receive))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        parts.loop.stop()
        await running


@pytest.fixture(autouse=True)
def audit_at_every_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continuo.engine.core.loop.AUDIT_EVERY_S", 0.0)


@AHEAD
async def test_audit_of_an_idle_engine_counts_a_leaked_page(letters: Path, ahead: int) -> None:
    """The failed audit is counted, and the engine keeps running."""
    harness = LoopHarness(letters, ahead)
    async with running_loop(harness):
        await harness.run_turn()
        assert await harness.failed_audits() == 0
        leaked = harness.parts.cache.pool.allocate()
        while not await harness.failed_audits():
            await asyncio.sleep(0.001)
        harness.parts.cache.pool.release([leaked])
        await harness.request(AppendIds(harness.n(), "s", [4]))


@AHEAD
async def test_no_audit_runs_during_a_turn(letters: Path, ahead: int) -> None:
    """A page is leaked from the first tokens of the turn to its end; no audit may notice."""

    class LeakingHarness(LoopHarness):
        leaked = -1

        def receive(self, events: list[EngineEvent]) -> None:
            super().receive(events)
            pool = self.parts.cache.pool
            for event in events:
                if isinstance(event, TurnTokens) and self.leaked < 0:
                    self.leaked = pool.allocate()
                if isinstance(event, TurnEnded):
                    pool.release([self.leaked])

    harness = LeakingHarness(letters, ahead)
    async with running_loop(harness):
        await harness.run_turn()
        assert harness.leaked >= 0
        assert await harness.failed_audits() == 0

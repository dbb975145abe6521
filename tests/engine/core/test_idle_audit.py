"""An engine proves its books where nothing is owed, and only there: a real loop, whose audits are
due whenever they may be made."""

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


class House:
    """A loop with nobody before it but a test."""

    def __init__(self, folder: Path, ahead: int) -> None:
        runner = DigestRunner(Geometry(64, 4, 200, VOCABULARY, 16, ahead, 0))
        self.parts: EngineCore[BatchResult] = assemble(
            runner, ModelText(str(folder)), EngineConfig()
        )
        self.events: list[EngineEvent] = []
        self._came = asyncio.Event()
        self._n = 0

    def hear(self, events: list[EngineEvent]) -> None:
        self.events += events
        self._came.set()

    def n(self) -> int:
        self._n += 1
        return self._n

    async def ask(self, command: LoopCommand) -> CommandDone:
        self.parts.loop.enqueue([command])
        while True:
            for event in self.events:
                if isinstance(event, CommandDone) and event.n == command.n:
                    return event
            self._came.clear()
            await self._came.wait()

    async def talk(self) -> None:
        """One turn, to its end."""
        for command in (
            OpenSession(self.n(), "s"),
            AppendIds(self.n(), "s", [1, 2, 3]),
            Generate(self.n(), "s", "turn", Sampling(max_tokens=30)),
        ):
            await self.ask(command)
        while not any(isinstance(event, TurnEnded) for event in self.events):
            self._came.clear()
            await self._came.wait()

    async def failed_audits(self) -> int:
        stats = (await self.ask(GetStats(self.n()))).stats
        assert stats is not None
        return stats.failed_audits


@contextlib.asynccontextmanager
async def living(house: House) -> AsyncIterator[None]:
    parts = house.parts
    running = asyncio.create_task(parts.loop.run(parts.sessions, house.hear))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        parts.loop.stop()
        await running


@pytest.fixture(autouse=True)
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continuo.engine.core.loop.AUDIT_EVERY_S", 0.0)


@AHEAD
async def test_a_fault_is_found_when_it_is_idle(letters: Path, ahead: int) -> None:
    """It is counted, and the engine lives."""
    house = House(letters, ahead)
    async with living(house):
        await house.talk()
        assert await house.failed_audits() == 0
        lost = house.parts.cache.pool.allocate()
        while not await house.failed_audits():
            await asyncio.sleep(0.001)
        house.parts.cache.pool.release([lost])
        await house.ask(AppendIds(house.n(), "s", [4]))


@AHEAD
async def test_a_turn_is_not_held_up_by_an_audit(letters: Path, ahead: int) -> None:
    """The books are wrong from its first word to its last; nobody looks at them meanwhile."""

    class Spoilt(House):
        lost = -1

        def hear(self, events: list[EngineEvent]) -> None:
            super().hear(events)
            pool = self.parts.cache.pool
            for event in events:
                if isinstance(event, TurnTokens) and self.lost < 0:
                    self.lost = pool.allocate()
                if isinstance(event, TurnEnded):
                    pool.release([self.lost])

    house = Spoilt(letters, ahead)
    async with living(house):
        await house.talk()
        assert house.lost >= 0
        assert await house.failed_audits() == 0

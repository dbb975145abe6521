"""A device beside the loop that hangs: the loop answers pings, and nothing comes of it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import Batch, BatchResult, Geometry
from continuo.engine.client import connection, router
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import VOCABULARY, DigestRunner, oracle
from tests.support.engines import Bench, engine_on

GEOMETRY = Geometry(64, 4, 200, VOCABULARY, 16, 1, 0)
PROMPT = [n % 90 for n in range(30)]


class Hanging(DigestRunner):
    def __init__(self, geometry: Geometry, *, step_s: float) -> None:
        super().__init__(geometry, step_s=step_s)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def launch(self, batch: Batch) -> BatchResult:
        self.goes_on.wait()
        return super().launch(batch)


@pytest.fixture
async def bench(letters: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Asked often, so that a test takes no minute."""
    monkeypatch.setattr(router, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(connection, "DEVICE_HANG_S", 0.5)
    async with engine_on(letters, lambda: Hanging(GEOMETRY, step_s=0.01)) as bench:
        try:
            yield bench
        finally:
            bench.runner.goes_on.set()


async def begun(bench: Bench, sampling: Sampling) -> "asyncio.Task[list[int]]":
    """What it says, of which the first id is there; and nothing more comes."""
    engine, first = bench.engine, asyncio.Event()
    session = await engine.open()
    await engine.append(session, PROMPT)
    turn = await engine.generate(session, sampling)

    async def say() -> list[int]:
        said: list[int] = []
        async for piece in turn:
            said += piece.ids
            if not first.is_set():
                bench.runner.goes_on.clear()
                first.set()
        return said

    saying = asyncio.create_task(say())
    await first.wait()
    return saying


async def test_it_is_as_good_as_silent(bench: Bench) -> None:
    saying = await begun(bench, Sampling(max_tokens=60))
    async with asyncio.timeout(30):
        while bench.engine.is_accepting_sessions:
            await asyncio.sleep(0.01)
    assert not bench.engine.is_available
    assert not saying.done()
    bench.runner.goes_on.set()
    assert await saying == oracle(PROMPT, 60)
    async with asyncio.timeout(30):
        while not bench.engine.is_accepting_sessions:
            await asyncio.sleep(0.01)
    assert bench.launches == 1


async def test_one_that_hangs_for_long_is_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DISCONNECT_AFTER_S", 2.0)
    saying = await begun(bench, Sampling(max_tokens=60))
    hung = bench.runner
    (child,) = bench.engine._router.connections
    async with asyncio.timeout(30):
        while child.is_connected:
            await asyncio.sleep(0.01)
    hung.goes_on.set()  # a process would be killed; a thread can not
    assert await saying == oracle(PROMPT, 60), "it goes on where it was"
    assert bench.launches == 2
    assert bench.engine.is_accepting_sessions

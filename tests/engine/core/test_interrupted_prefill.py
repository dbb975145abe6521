"""Tests of steps that only prefill: commands take effect while they are computed, and a short turn
that begins does not wait for their end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.core.loop import DISCARD_GAIN_S_MIN
from continuo.engine.core.schedule import step_time
from continuo.engine.core.schedule.packing import SHORT_TURN_TOKENS_MAX
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness, digest_engine
from tests.support.waiting import wait_until

ENDLESS = 10**9
COLD = [n % 90 for n in range(300)]


@contextlib.asynccontextmanager
async def running_engine(folder: Path, pauses: int) -> AsyncIterator[EngineHarness]:
    """An engine whose steps are computed after `pauses` pauses; closed within 20 s."""
    async with (
        asyncio.timeout(20),
        digest_engine(
            folder, pages=200, max_model_len=400, batched_tokens=512, pauses=pauses
        ) as harness,
    ):
        yield harness


async def generate(harness: EngineHarness, ids: list[int], count: int) -> list[int]:
    session = await harness.engine.open()
    await harness.engine.append(session, ids)
    turn = await harness.engine.generate(session, Sampling(max_tokens=count))
    return [id async for piece in turn for id in piece.ids]


async def begin_cold_turn(harness: EngineHarness) -> "asyncio.Task[list[int]]":
    """Begin a long turn, and wait until a step of it is computed."""
    cold = asyncio.create_task(generate(harness, COLD, 5))
    await wait_until(lambda: harness.runner.times_paused)
    return cold


async def test_short_turn_does_not_wait_for_the_end_of_a_prefill_step(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of the long turn does not end before the short turn has begun."""
    monkeypatch.setattr(step_time, "DISCARDED_S_MAX", 20.0)
    async with running_engine(letters, ENDLESS) as harness:
        cold = await begin_cold_turn(harness)
        assert await generate(harness, [3, 1, 4], 5) == oracle([3, 1, 4], 5)
        harness.runner.pauses = 0
        assert await cold == oracle(COLD, 5)
        assert harness.runner.discarded_steps > 0


async def test_prefill_step_is_not_discarded_if_that_gains_little(letters: Path) -> None:
    async with running_engine(letters, ENDLESS) as harness:
        cold = await begin_cold_turn(harness)
        harness.runner.rest_s = DISCARD_GAIN_S_MIN / 2
        assert await generate(harness, [3, 1, 4], 5) == oracle([3, 1, 4], 5)
        assert await cold == oracle(COLD, 5)
        assert harness.runner.discarded_steps == 0


async def test_prefill_step_is_computed_to_its_end_beside_long_turns(letters: Path) -> None:
    other = [7, *COLD[:SHORT_TURN_TOKENS_MAX]]
    async with running_engine(letters, 50) as harness:
        assert await asyncio.gather(generate(harness, COLD, 5), generate(harness, other, 5)) == [
            oracle(COLD, 5),
            oracle(other, 5),
        ]
        assert harness.runner.discarded_steps == 0

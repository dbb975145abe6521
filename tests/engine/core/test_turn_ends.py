"""Tests of the ends of turns: output of a step is processed while the next step is planned, so that
a step may be launched for a turn that has already ended."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.wire.messages import AppendIds, CancelTurn, PauseTurn, Sampling
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness, digest_engine


async def generate_and_check(
    harness: EngineHarness, session: str, log: list[int], sampling: Sampling
) -> list[int]:
    async with asyncio.timeout(20):
        turn = await harness.engine.generate(session, sampling)
        output = [id async for piece in turn for id in piece.ids]
    assert output == oracle(log, len(output))
    return output


@pytest.mark.parametrize("length", range(1, 8))
async def test_step_launched_for_an_ended_turn_is_abandoned(letters: Path, length: int) -> None:
    """The next turn, in the same pages, does not use the KV of the abandoned step."""
    async with digest_engine(letters) as harness:
        log = [3, 1, 4, 1, 5]
        session = await harness.engine.open()
        await harness.engine.append(session, log)
        for n in range(6):
            last = oracle(log, length + n % 2)[-1]
            log += await generate_and_check(
                harness, session, log, Sampling(max_tokens=20, stop_ids=(last,))
            )
            await harness.engine.append(session, [n, 7])
            log += [n, 7]
        assert harness.runner.discarded_steps > 0


async def test_step_shared_with_a_running_turn_is_not_abandoned(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        running, other = await harness.engine.open(), await harness.engine.open()
        await harness.engine.append(running, [7])
        long_turn = await harness.engine.generate(running, Sampling(max_tokens=150))
        log = [2, 7, 1, 8]
        await harness.engine.append(other, log)
        for _ in range(6):
            last = oracle(log, 3)[-1]
            log += await generate_and_check(
                harness, other, log, Sampling(max_tokens=20, stop_ids=(last,))
            )
        async with asyncio.timeout(20):
            output = [id async for piece in long_turn for id in piece.ids]
        assert output == oracle([7], 150)
        assert harness.runner.near_end_calls > 0
        assert harness.runner.discarded_steps == 0


async def test_turn_that_ends_at_its_limit_launches_no_further_step(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        log = [1, 6, 1, 8]
        session = await harness.engine.open()
        await harness.engine.append(session, log)
        for _ in range(6):
            log += await generate_and_check(harness, session, log, Sampling(max_tokens=5))
        assert harness.runner.near_end_calls > 0
        assert harness.runner.discarded_steps == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_turn_can_be_paused_and_discarded_while_in_flight(ahead: int) -> None:
    core = CoreHarness()
    core.open("s")
    core.append("s", [3, 1, 4])
    core.generate("s", 10)
    for _ in range(3):
        core.launch()
        if core.steps_in_flight > ahead:
            core.collect()
    core.launch()
    core.apply(PauseTurn(core.next_number(), "s"))
    assert core.apply(CancelTurn(core.next_number(), "s", drop=True)).length == 3
    core.run(ahead=ahead)
    assert core.sequence("s").committed_high_water <= 3
    core.append("s", [1, 5])
    core.generate("s", 4, "next")
    core.run(ahead=ahead)
    assert core.turn_ids("s", "next") == oracle([3, 1, 4, 1, 5], 4)


@pytest.mark.parametrize("ahead", [0, 1])
def test_prefill_advances_in_each_step_beside_a_running_turn(ahead: int) -> None:
    core = CoreHarness(pages=200, batched_tokens=16)
    core.open("decoding")
    core.append("decoding", [7])
    core.generate("decoding", 60)
    core.open("prefilling")
    core.submit(AppendIds(core.next_number(), "prefilling", [n % 90 for n in range(300)]))
    steps = list[int]()
    while core.sequence("prefilling").owed:
        order = core.launch()
        assert order is not None
        steps.append(sum(w.tokens for w in order.rows if w.sequence.id == "prefilling"))
        if core.steps_in_flight > ahead:
            core.collect()
    assert all(steps)
    core.run(ahead=ahead)
    assert core.turn_ids("decoding") == oracle([7], 60)

"""Where the loop works at each step itself, others do the end of it while the next one is planned:
its turn may have ended by then."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.wire.messages import AppendIds, CancelTurn, PauseTurn, Sampling
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engines import Bench, digest_engine


async def say(bench: Bench, session: str, log: list[int], sampling: Sampling) -> list[int]:
    async with asyncio.timeout(20):
        turn = await bench.engine.generate(session, sampling)
        said = [id async for piece in turn for id in piece.ids]
    assert said == oracle(log, len(said))
    return said


@pytest.mark.parametrize("length", range(1, 8))
async def test_a_step_for_a_turn_that_has_ended_is_abandoned(letters: Path, length: int) -> None:
    """What it has written is not believed by the next turn, in the same pages."""
    async with digest_engine(letters) as bench:
        log = [3, 1, 4, 1, 5]
        session = await bench.engine.open()
        await bench.engine.append(session, log)
        for n in range(6):
            last = oracle(log, length + n % 2)[-1]
            log += await say(bench, session, log, Sampling(max_tokens=20, stop_ids=(last,)))
            await bench.engine.append(session, [n, 7])
            log += [n, 7]
        assert bench.runner.abandoned > 0


async def test_not_if_it_is_for_somebody_else_as_well(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        talker, other = await bench.engine.open(), await bench.engine.open()
        await bench.engine.append(talker, [7])
        going_on = await bench.engine.generate(talker, Sampling(max_tokens=150))
        log = [2, 7, 1, 8]
        await bench.engine.append(other, log)
        for _ in range(6):
            last = oracle(log, 3)[-1]
            log += await say(bench, other, log, Sampling(max_tokens=20, stop_ids=(last,)))
        async with asyncio.timeout(20):
            said = [id async for piece in going_on for id in piece.ids]
        assert said == oracle([7], 150)
        assert bench.runner.approached > 0
        assert bench.runner.abandoned == 0


async def test_a_turn_that_ends_at_its_limit_has_no_step_behind_it(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        log = [1, 6, 1, 8]
        session = await bench.engine.open()
        await bench.engine.append(session, log)
        for _ in range(6):
            log += await say(bench, session, log, Sampling(max_tokens=5))
        assert bench.runner.approached > 0
        assert bench.runner.abandoned == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_turn_that_is_paused_and_dropped_while_its_step_flies(ahead: int) -> None:
    desk = Desk()
    desk.open("s")
    desk.append("s", [3, 1, 4])
    desk.generate("s", 10)
    for _ in range(3):
        desk.launch()
        if desk.flying > ahead:
            desk.collect()
    desk.launch()
    desk.do(PauseTurn(desk.n(), "s"))
    assert desk.do(CancelTurn(desk.n(), "s", drop=True)).length == 3
    desk.run(ahead=ahead)
    assert desk.sequence("s").committed_high_water <= 3
    desk.append("s", [1, 5])
    desk.generate("s", 4, "next")
    desk.run(ahead=ahead)
    assert desk.said("s", "next") == oracle([3, 1, 4, 1, 5], 4)


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_is_to_be_read_is_read_in_each_step_beside_a_running_turn(ahead: int) -> None:
    desk = Desk(pages=200, batched_tokens=16)
    desk.open("talks")
    desk.append("talks", [7])
    desk.generate("talks", 60)
    desk.open("listens")
    desk.tell(AppendIds(desk.n(), "listens", [n % 90 for n in range(300)]))
    steps = list[int]()
    while desk.sequence("listens").owed:
        order = desk.launch()
        assert order is not None
        steps.append(sum(w.tokens for w in order.rows if w.sequence.id == "listens"))
        if desk.flying > ahead:
            desk.collect()
    assert all(steps)
    desk.run(ahead=ahead)
    assert desk.said("talks") == oracle([7], 60)

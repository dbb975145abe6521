"""Where the loop works at each step itself, others do the end of it while the next one is planned:
its turn may have ended by then."""

from pathlib import Path

import pytest

from engine.messages import Sampling
from tests.support.digest_runner import oracle
from tests.support.engines import Bench, digest_engine


async def say(bench: Bench, session: str, log: list[int], sampling: Sampling) -> list[int]:
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
        for _ in range(6):
            last = oracle(log, length)[-1]
            log += await say(bench, session, log, Sampling(max_tokens=20, stop_ids=(last,)))
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

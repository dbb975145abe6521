"""Tests of a step that fails once, anywhere: no turn fails, and no undefined KV is used."""

from pathlib import Path

import pytest

from continuo.engine.wire.messages import Sampling, TurnEnded
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engines import digest_engine

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
PROMPT = [n % 90 for n in range(60)]


@AHEAD
@pytest.mark.parametrize("failed", range(10))
def test_kv_of_the_step_after_a_failed_one_is_discarded(ahead: int, failed: int) -> None:
    """The later step was launched to read KV that the failed step should have written."""
    desk = CoreHarness(batched_tokens=8)
    desk.open("s")
    desk.append("s", PROMPT)
    desk.generate("s", 3)
    desk.runner.failing_steps = {failed}
    desk.run(ahead=ahead)
    assert desk.turn_end("s").reason == "length"
    assert desk.turn_ids("s") == oracle(PROMPT, 3)
    log = PROMPT + desk.turn_ids("s")
    desk.append("s", [5])
    desk.generate("s", 4, "next")
    desk.run(ahead=ahead)
    assert desk.turn_ids("s", "next") == oracle([*log, 5], 4)


@AHEAD
@pytest.mark.parametrize("failed", [0, 3, 6, 8])
async def test_failed_step_is_repeated_by_the_real_loop(
    letters: Path, ahead: int, failed: int
) -> None:
    async with digest_engine(letters, batched_tokens=8, steps_ahead=ahead) as bench:
        engine, log = bench.engine, list(PROMPT)
        session = await engine.open()
        bench.runner.failing_steps = {failed}
        await engine.append(session, PROMPT)
        turn = await engine.generate(session, Sampling(max_tokens=8))
        log += [id async for piece in turn for id in piece.ids]
        assert log == PROMPT + oracle(PROMPT, 8)
        await engine.append(session, [5])
        turn = await engine.generate(session, Sampling(max_tokens=4))
        output = [id async for piece in turn for id in piece.ids]
        assert output == oracle([*log, 5], 4)
        assert (await engine.stats()).failed_steps > 0


@AHEAD
def test_page_copy_of_a_failed_step_is_discarded(ahead: int) -> None:
    """The last page of a fork is copied in a step with a row of another session only."""
    desk = CoreHarness()
    desk.open("parent")
    desk.append("parent", PROMPT[:10])
    desk.open("other")
    desk.append("other", [1])
    desk.run()
    desk.fork("parent", "child", 9)
    desk.runner.failing_steps = {desk.counters.steps}
    desk.generate("other", 1)
    desk.run(ahead=ahead)
    assert desk.turn_ids("other") == oracle([1], 1)
    for session, log in (("child", PROMPT[:9]), ("parent", PROMPT[:10])):
        desk.append(session, [5])
        desk.generate(session, 4)
        desk.run(ahead=ahead)
        assert desk.turn_ids(session) == oracle([*log, 5], 4)


@AHEAD
@pytest.mark.parametrize("nth", range(12))
def test_failed_step_with_spills_or_recalls_loses_no_kv(ahead: int, nth: int) -> None:
    """Two sessions alternate in a pool for one, with a host tier; one of their steps fails."""
    desk = CoreHarness(pages=8, host_pages=16)
    logs = {"a": PROMPT[:20], "b": PROMPT[20:40]}
    for session, log in logs.items():
        desk.open(session)
        desk.append(session, list(log))
    desk.runner.failing_steps = {nth}
    for round in range(4):
        for session, log in logs.items():
            turn = f"{round}"
            desk.generate(session, 2, turn)
            desk.run(ahead=ahead)
            output = desk.turn_ids(session, turn)
            assert output == oracle(log, 2)
            log += output
    assert all(end.reason == "length" for end in desk.events_of(TurnEnded))
    assert desk.counters.failed_steps >= 1
    assert desk.cache.host_tier.spilled_pages > 0
    assert desk.cache.host_tier.recalled_pages > 0


def test_turns_outside_the_failed_step_restart_when_all_kv_is_discarded() -> None:
    """A step has one row for two turns, so that one turn is not in the failed step."""
    desk = CoreHarness(rows=1, pages=40)
    for name in ("a", "b"):
        desk.open(name)
        desk.append(name, PROMPT[:9])
        desk.run()
    desk.fork("b", "c", 9)  # its page is copied in the next step, which is a's
    for name in ("a", "b"):
        desk.generate(name, 3)
    desk.runner.failing_steps = {desk.counters.steps}
    desk.step()
    assert desk.cache.leased_pages == desk.cache.tree.size == 0
    desk.run()
    for name in ("a", "b"):
        assert desk.turn_ids(name) == oracle(PROMPT[:9], 3)
        assert desk.turn_end(name).reason == "length"

"""Tests of a step that fails once, anywhere: no turn fails, and no undefined KV is used."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.engine.wire.messages import Sampling, TurnEnded
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engines import digest_engine
from tests.support.garbage import garbage_of_block

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
PROMPT = [n % 90 for n in range(60)]


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Log nothing: pytest keeps each record, and with it the exception and its frames."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@AHEAD
@pytest.mark.parametrize("failed", range(10))
def test_kv_of_the_step_after_a_failed_one_is_discarded(ahead: int, failed: int) -> None:
    """The later step was launched to read KV that the failed step should have written."""
    core = CoreHarness(batched_tokens=8)
    core.open("s")
    core.append("s", PROMPT)
    core.generate("s", 3)
    core.runner.failing_steps = {failed}
    core.run(ahead=ahead)
    assert core.turn_end("s").reason == "length"
    assert core.turn_ids("s") == oracle(PROMPT, 3)
    log = PROMPT + core.turn_ids("s")
    core.append("s", [5])
    core.generate("s", 4, "next")
    core.run(ahead=ahead)
    assert core.turn_ids("s", "next") == oracle([*log, 5], 4)


@AHEAD
@pytest.mark.parametrize("failed", [0, 3, 6, 8])
async def test_failed_step_is_repeated_by_the_real_loop(
    letters: Path, ahead: int, failed: int, no_logs: None
) -> None:
    async with digest_engine(letters, batched_tokens=8, steps_ahead=ahead) as harness:
        engine, log = harness.engine, list(PROMPT)
        session = await engine.open()
        harness.runner.failing_steps = {failed}
        with garbage_of_block() as garbage:
            await engine.append(session, PROMPT)
            turn = await engine.generate(session, Sampling(max_tokens=8))
            log += [id async for piece in turn for id in piece.ids]
        assert not garbage
        assert log == PROMPT + oracle(PROMPT, 8)
        await engine.append(session, [5])
        turn = await engine.generate(session, Sampling(max_tokens=4))
        output = [id async for piece in turn for id in piece.ids]
        assert output == oracle([*log, 5], 4)
        assert (await engine.fleet.stats()).failed_steps > 0


@AHEAD
def test_page_copy_of_a_failed_step_is_discarded(ahead: int) -> None:
    """The last page of a fork is copied in a step with a row of another session only."""
    core = CoreHarness()
    core.open("parent")
    core.append("parent", PROMPT[:10])
    core.open("other")
    core.append("other", [1])
    core.run()
    core.fork("parent", "child", 9)
    core.runner.failing_steps = {core.counters.steps}
    core.generate("other", 1)
    core.run(ahead=ahead)
    assert core.turn_ids("other") == oracle([1], 1)
    for session, log in (("child", PROMPT[:9]), ("parent", PROMPT[:10])):
        core.append(session, [5])
        core.generate(session, 4)
        core.run(ahead=ahead)
        assert core.turn_ids(session) == oracle([*log, 5], 4)


@AHEAD
@pytest.mark.parametrize("nth", range(12))
def test_failed_step_with_spills_or_recalls_loses_no_kv(ahead: int, nth: int) -> None:
    """Two sessions alternate in a pool for one, with a host tier; one of their steps fails."""
    core = CoreHarness(pages=8, host_pages=16)
    logs = {"a": PROMPT[:20], "b": PROMPT[20:40]}
    for session, log in logs.items():
        core.open(session)
        core.append(session, list(log))
    core.runner.failing_steps = {nth}
    for round in range(4):
        for session, log in logs.items():
            turn = f"{round}"
            core.generate(session, 2, turn)
            core.run(ahead=ahead)
            output = core.turn_ids(session, turn)
            assert output == oracle(log, 2)
            log += output
    assert all(end.reason == "length" for end in core.events_of(TurnEnded))
    assert core.counters.failed_steps >= 1
    assert core.cache.host_tier.spilled_pages > 0
    assert core.cache.host_tier.recalled_pages > 0


def test_turns_outside_the_failed_step_restart_when_all_kv_is_discarded() -> None:
    """A step has one row for two turns, so that one turn is not in the failed step."""
    core = CoreHarness(rows=1, pages=40)
    for name in ("a", "b"):
        core.open(name)
        core.append(name, PROMPT[:9])
        core.run()
    core.fork("b", "c", 9)  # its page is copied in the next step, which is a's
    for name in ("a", "b"):
        core.generate(name, 3)
    core.runner.failing_steps = {core.counters.steps}
    core.step()
    assert core.cache.usage.leased_pages == core.cache.tree.size == 0
    core.run()
    for name in ("a", "b"):
        assert core.turn_ids(name) == oracle(PROMPT[:9], 3)
        assert core.turn_end(name).reason == "length"

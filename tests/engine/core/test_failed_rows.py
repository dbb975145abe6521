"""Tests of fault isolation: a row that makes its step raise fails only its own turn."""

import math
from pathlib import Path

import pytest

from continuo.engine.errors import TurnFailed
from continuo.engine.wire.messages import AttachSession, CancelTurn, Generate, OpenSession, Sampling
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engines import digest_engine

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
SESSIONS = 16
HALVINGS = int(math.log2(SESSIONS))
EXTRA_STEPS_MAX = 2 * (2 * HALVINGS + 1)
"""Steps of suspects, alternating with as many steps of the other sessions."""
BAD = VOCABULARY
"""An id that no turn draws."""
IDS = 8
"""Number of ids that each turn draws."""


def prompts(length: int) -> list[list[int]]:
    """Return one prompt of `length` ids per session."""
    return [[(n * 31 + k) % 90 for k in range(length)] for n in range(SESSIONS)]


def desk_with(logs: list[list[int]], pages: int = 1024, batched_tokens: int = 512) -> CoreHarness:
    core = CoreHarness(
        pages=pages, batched_tokens=batched_tokens, rows=SESSIONS, vocabulary=BAD + 1
    )
    for n, log in enumerate(logs):
        core.open(f"s{n}")
        core.append(f"s{n}", list(log))
    return core


def check(core: CoreHarness, logs: list[list[int]], bad: int, reason: str = "length") -> None:
    """Check that only the turn of row `bad` failed, and that all other outputs are unaffected."""
    for n, log in enumerate(logs):
        if n != bad:
            assert core.turn_end(f"s{n}").reason == reason
            assert core.turn_ids(f"s{n}") == oracle(log, IDS)
    end = core.turn_end(f"s{bad}")
    assert end.reason == "failed"
    assert end.error == "RuntimeError: the device is on fire"
    assert core.turn_ids(f"s{bad}") == oracle(logs[bad], end.output_tokens)


def run(
    logs: list[list[int]],
    ahead: int,
    raising: set[int],
    pages: int = 1024,
    batched_tokens: int = 512,
) -> tuple[CoreHarness, int]:
    core = desk_with(logs, pages, batched_tokens)
    core.runner.raising_ids = raising
    for n in range(len(logs)):
        core.generate(f"s{n}", IDS)
    return core, core.run(ahead=ahead)


@AHEAD
@pytest.mark.parametrize("bad", [0, 7, 15])
@pytest.mark.parametrize("length", [5, 70])
def test_bad_prompt_fails_only_its_own_turn(ahead: int, bad: int, length: int) -> None:
    logs = prompts(length)
    logs[bad][length // 2] = BAD
    tokens = SESSIONS * length  # a step has a row of every session
    _, undisturbed = run(logs, ahead, set(), batched_tokens=tokens)
    core, steps = run(logs, ahead, {BAD}, batched_tokens=tokens)
    check(core, logs, bad)
    assert core.turn_end(f"s{bad}").output_tokens == 0
    if not ahead:
        assert steps <= undisturbed + EXTRA_STEPS_MAX
        assert core.counters.failed_steps == HALVINGS + 1


@AHEAD
@pytest.mark.parametrize("bad", [0, 15])
def test_bad_id_in_a_late_prefill_chunk_fails_only_its_own_turn(ahead: int, bad: int) -> None:
    logs = prompts(60)
    logs[bad][55] = BAD
    core, _ = run(logs, ahead, {BAD}, batched_tokens=128)
    check(core, logs, bad)


@AHEAD
@pytest.mark.parametrize("bad", [1, 9])
def test_bad_drawn_id_fails_only_its_own_turn(ahead: int, bad: int) -> None:
    logs = [[1, 2, 3]] * SESSIONS
    others = set(oracle(logs[0], IDS))
    logs[bad] = next(
        log for log in ([n, 80] for n in range(80)) if not others & set(oracle(log, IDS))
    )
    raising = oracle(logs[bad], IDS)[4]
    _, undisturbed = run(logs, ahead, set())
    core, steps = run(logs, ahead, {raising})
    check(core, logs, bad)
    assert core.turn_ids(f"s{bad}")[-1] == raising
    if not ahead:
        assert steps <= undisturbed + EXTRA_STEPS_MAX
        assert core.counters.failed_steps == HALVINGS + 1


@AHEAD
def test_two_bad_rows_fail_only_their_own_turns(ahead: int) -> None:
    logs = prompts(5)
    logs[3][2] = logs[4][2] = BAD
    core, _ = run(logs, ahead, {BAD})
    for n, log in enumerate(logs):
        assert core.turn_end(f"s{n}").reason == ("failed" if n in (3, 4) else "length")
        assert n in (3, 4) or core.turn_ids(f"s{n}") == oracle(log, IDS)


@AHEAD
@pytest.mark.parametrize("failed", range(8))
def test_transient_step_failure_fails_no_turn(ahead: int, failed: int) -> None:
    logs = prompts(40)
    core = desk_with(logs, batched_tokens=128)
    core.runner.failing_steps = {failed, failed + 1}
    for n in range(SESSIONS):
        core.generate(f"s{n}", IDS)
    core.run(ahead=ahead)
    assert core.counters.failed_steps >= 2
    for n, log in enumerate(logs):
        assert core.turn_ids(f"s{n}") == oracle(log, IDS)


@AHEAD
def test_bad_append_without_a_turn_fails_no_other_turn(ahead: int) -> None:
    logs = prompts(12)
    logs[2][6] = BAD
    core = desk_with(logs)
    core.runner.raising_ids = {BAD}
    for n in range(SESSIONS):
        if n != 2:
            core.generate(f"s{n}", IDS)
    core.run(ahead=ahead)
    for n, log in enumerate(logs):
        assert n == 2 or core.turn_ids(f"s{n}") == oracle(log, IDS)
    failed = core.counters.failed_steps
    core.generate("s2", IDS)
    core.run(ahead=ahead)
    assert core.turn_end("s2").reason == "failed"
    assert core.counters.failed_steps <= failed + 1 + ahead, "a known suspect runs alone at once"
    core.rewind("s2", 6)
    core.generate("s2", IDS, "next")
    core.run(ahead=ahead)
    assert core.turn_ids("s2", "next") == oracle(logs[2][:6], IDS)


@AHEAD
@pytest.mark.parametrize("ending", ["cancel", "drop", "close"])
def test_suspects_can_end_during_fault_isolation(ahead: int, ending: str) -> None:
    logs = prompts(5)
    logs[0][2] = BAD
    core = desk_with(logs)
    core.runner.raising_ids = {BAD}
    for n in range(SESSIONS):
        core.generate(f"s{n}", IDS)
    core.step()  # all are suspects now
    for n in (0, 1, 12):
        if ending == "close":
            core.close(f"s{n}")
        else:
            core.apply(CancelTurn(core.next_number(), f"s{n}", None, ending == "drop"))
    core.run(ahead=ahead)
    for n, log in enumerate(logs):
        if n in (0, 1, 12):
            assert core.turn_end(f"s{n}").reason == "cancelled"
        else:
            assert core.turn_ids(f"s{n}") == oracle(log, IDS)
    if ending != "close":
        core.generate("s1", IDS, "next")
        core.run(ahead=ahead)
        assert core.turn_ids("s1", "next") == oracle(logs[1], IDS)


@AHEAD
def test_fault_isolation_terminates_in_a_small_page_pool(ahead: int) -> None:
    logs = prompts(30)
    logs[11][20] = BAD
    core, _ = run(logs, ahead, {BAD}, pages=40, batched_tokens=64)
    check(core, logs, 11)


def test_other_turns_run_every_other_step_during_fault_isolation() -> None:
    """Suspects and other turns alternate in the steps."""
    logs = prompts(6)
    core = desk_with(logs)
    core.run()
    for n in range(8):
        core.generate(f"s{n}", 40)
    first = core.counters.steps
    core.runner.failing_steps = {first, *range(first + 1, first + 20, 2)}
    core.step()
    for n in range(8, SESSIONS):
        core.generate(f"s{n}", 12)
    for _ in range(10):
        apart, together = core.step(), core.step()
        assert apart is not None
        assert together is not None
        assert all(int(work.sequence.id[1:]) < 8 for work in apart.rows)
        assert {f"s{n}" for n in range(8, SESSIONS)} <= {w.sequence.id for w in together.rows}


def test_session_attached_apart_runs_alone_until_it_is_cleared() -> None:
    logs = prompts(6)
    core = desk_with(logs[:3])
    for n in range(3):
        core.generate(f"s{n}", 40)
    generate = Generate(0, "x", "turn", Sampling(max_tokens=10))
    core.apply(
        AttachSession(core.next_number(), OpenSession(0, "x"), logs[3], generate=generate, apart=4)
    )
    steps: list[set[str]] = []
    while (order := core.step()) is not None:
        steps.append({work.sequence.id for work in order.rows})
    own = [step for step in steps if "x" in step]
    assert own[:5] == [{"x"}] * 5, "prompt and four ids run alone"
    assert own[5:] == [{"s0", "s1", "s2", "x"}] * 5
    assert steps[:4] == [{"x"}, {"s0", "s1", "s2"}] * 2, "the other turns have every other step"
    assert core.turn_ids("x") == oracle(logs[3], 10)


@AHEAD
async def test_bad_row_fails_only_its_own_turn_in_the_real_loop(letters: Path, ahead: int) -> None:
    logs = prompts(9)
    logs[6][4] = BAD
    async with digest_engine(
        letters,
        steps_ahead=ahead,
        pages=1024,
        rows=SESSIONS,
        batched_tokens=256,
        vocabulary=BAD + 1,
    ) as harness:
        engine = harness.engine
        harness.runner.raising_ids = {BAD}
        for n, log in enumerate(logs):
            await engine.open(f"s{n}")
            await engine.append(f"s{n}", log)
        turns = [await engine.generate(f"s{n}", Sampling(max_tokens=IDS)) for n in range(SESSIONS)]
        for n, turn in enumerate(turns):
            if n == 6:
                with pytest.raises(TurnFailed, match="on fire"):
                    [piece async for piece in turn]
            else:
                output = [id async for piece in turn for id in piece.ids]
                assert output == oracle(logs[n], IDS)

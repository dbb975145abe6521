"""Tests of forks at every position of a log, with and without a provisional span at its end.

Child and parent each continue from their own log, and almost no tokens are recomputed.
"""

import pytest

from continuo.engine.wire.messages import ForkSession
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


@AHEAD
@pytest.mark.parametrize("provisional", [0, 3, 10])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_fork_at_every_position_recomputes_almost_no_tokens(
    page_size: int, provisional: int, ahead: int
) -> None:
    log = prompt_ids(22, seed=1)
    for at in range(1, len(log) + 1):
        core = CoreHarness(pages=64 if page_size > 1 else 256, page_size=page_size)
        core.open("parent")
        core.append("parent", list(log))
        if provisional:
            core.append("parent", prompt_ids(provisional, seed=2), span="provisional")
        core.run()
        assert core.sequence("parent").committed == len(log) + provisional
        before = core.runner.token_count
        core.fork("parent", "child", at)
        core.append("child", [5, 6])
        core.append("parent", prompt_ids(provisional, seed=2), span="commit")
        for session in ("child", "parent"):
            core.generate(session, 3)
        core.run(ahead=ahead)
        assert core.turn_ids("child") == oracle([*log[:at], 5, 6], 3)
        assert core.turn_ids("parent") == oracle(log + prompt_ids(provisional, seed=2), 3)
        assert core.turn_end("child").cached_tokens == at
        assert core.runner.token_count - before <= (2 + 2) + (1 + 2)


@AHEAD
@pytest.mark.parametrize("command", ["fork", "rewind"])
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_fork_and_rewind_into_shared_pages_copy_only_the_last_page(
    page_size: int, command: str, ahead: int
) -> None:
    """A fork or rewind into a published page, also at its edges, copies the page to be written and
    recomputes no token in it. Other leases of the shared page are not affected."""
    log = prompt_ids(2 * page_size + 7, seed=1)
    core = CoreHarness(pages=96 if page_size < 256 else 16, page_size=page_size, batched_tokens=512)
    core.open("other")
    core.append("other", list(log))
    core.generate("other", 3)
    core.run(ahead=ahead)
    other_log = log + core.turn_ids("other")
    owned = core.sequence("other").lease.path
    assert len(owned) * page_size == len(log) // page_size * page_size, "the tree owns full pages"
    edges = {1, 2, page_size // 2, page_size - 1, page_size, page_size + 1, 2 * page_size - 1}
    for at in sorted(edges - {0}):
        name = f"at {at}"
        if command == "fork":
            before = core.runner.token_count
            core.fork("other", name, at)
        else:
            core.fork("other", name)
            before = core.runner.token_count
            assert core.rewind(name, at).length == at
        core.append(name, [5, 6])
        core.generate(name, 3)
        core.run(ahead=ahead)
        assert core.turn_ids(name) == oracle([*log[:at], 5, 6], 3)
        assert core.turn_end(name).cached_tokens == at
        assert core.runner.token_count - before <= 2 + 2 + ahead
        core.close(name)
    core.append("other", [4])
    core.generate("other", 3, "next")
    core.run(ahead=ahead)
    assert core.turn_ids("other", "next") == oracle([*other_log, 4], 3)


@AHEAD
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_prompt_can_be_forked_at_every_step_of_a_turn(page_size: int, ahead: int) -> None:
    """The prompt of a turn does not change: a fork of it neither waits nor recomputes it, at every
    step of the turn, also while steps are in flight."""
    log = prompt_ids(21, seed=1)
    for steps in range(1, 12):
        core = CoreHarness(
            pages=64 if page_size > 1 else 256, page_size=page_size, batched_tokens=16
        )
        core.open("parent")
        core.append("parent", list(log))
        core.generate("parent", 8)
        for _ in range(steps):
            core.launch()
            while core.steps_in_flight > ahead:
                core.collect()
        committed = core.sequence("parent").committed
        running = not core.has_turn_ended("parent")
        for at in (1, 10, len(log)):
            child = f"child {at}"
            core.fork("parent", child, at)
            core.append(child, [5, 6])
            core.generate(child, 3)
        core.run(ahead=ahead)
        assert core.turn_ids("parent") == oracle(log, 8)
        for at in (1, 10, len(log)):
            child = f"child {at}"
            assert core.turn_ids(child) == oracle([*log[:at], 5, 6], 3)
            assert core.turn_end(child).cached_tokens >= min(at, committed)
        assert running or steps > 8


def test_fork_into_the_output_of_a_turn_waits_for_its_end() -> None:
    core = CoreHarness()
    core.open("parent")
    core.append("parent", prompt_ids(9, seed=1))
    core.generate("parent", 6)
    for _ in range(3):
        core.step()
    assert core.submit(ForkSession(core.next_number(), "parent", "child", 10)) is None
    assert core.submit(ForkSession(core.next_number(), "parent", "all", None)) is None
    core.run()
    assert core.sequence("child").log.length == 10
    assert core.sequence("all").log.length == 15

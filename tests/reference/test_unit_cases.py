"""Tests of single rules of sessions: SGLang's unit cases, as far as they apply to this engine.

test_streaming_session_unit
  pre-abort keeps the slot            test_refused_commands_keep_pages_and_log
  first-turn abort frees [0, 20)      test_first_turn_cancelled_and_rewound_leaves_no_pages
  Nth-turn abort frees [0, 65)        test_later_turn_cancelled_with_drop_keeps_its_prompt_and_kv
  trim overshoot 26 + 12 = 38         test_commit_of_fewer_tokens_releases_the_tail_pages,
                                      test_turn_ended_by_length_holds_no_page_beyond_its_kv
  release forwards Mamba skip ids     nothing to test: no recurrent state
token sharing
  in-place share, carry               test_turns_of_a_session_share_one_array_of_ids
  abort mid turn, continue, twice     test_session_continues_after_turns_cancelled_midway
  first-turn abort                    test_first_turn_cancelled_and_rewound_leaves_no_pages
  overshoot falls back to rebuild     test_step_in_flight_beyond_a_stop_id_is_discarded
test_session_inactivity               test_refused_command_does_not_restart_the_idle_timeout,
                                      test_accepted_command_restarts_the_idle_timeout
test_session_controller (unmerged)    test_busy_session_expires_only_after_its_turn_ended,
                                      test_close_waits_for_the_step_in_flight
test_session_abort_lifecycle          test_queued_turn_is_cancelled_and_the_running_one_ends,
                                      test_turn_cancelled_repeatedly_is_cancelled_once
retract/readmit equals no-retract     test_output_after_a_retraction_equals_that_without
test_streaming_session_backtrack      test_five_rewinds_keep_kv_before_them_and_leak_no_page
"""

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.wire.messages import (
    AppendIds,
    CancelTurn,
    CloseSession,
    CommandDone,
    CommandRefused,
    ForkSession,
    Generate,
    LoopCommand,
    OpenSession,
    RewindSession,
    Sampling,
    SessionExpired,
    TurnEnded,
)
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
SIZES = pytest.mark.parametrize("page_size", [1, 16, 256])


def page_count(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def desk_with_turn(session: str, prompt: list[int], count: int, **options: Any) -> CoreHarness:
    core = CoreHarness(**options)
    core.open(session)
    core.append(session, list(prompt))
    core.generate(session, count)
    return core


# ---- refused and cancelled turns -------------------------------------------------------------


@SIZES
def test_refused_commands_keep_pages_and_log(page_size: int) -> None:
    core = desk_with_turn("s", prompt_ids(20), 5, page_size=page_size, max_model_len=40)
    core.run()
    sequence = core.sequence("s")
    before = (list(sequence.ids), list(sequence.lease.pages), sequence.committed)
    for command in (
        AppendIds(core.next_number(), "s", prompt_ids(30)),
        AppendIds(core.next_number(), "s", [1], offset=3),
        AppendIds(core.next_number(), "s", [1], drop_previous_output=True),
        AppendIds(core.next_number(), "s", [1], replace=True),
        RewindSession(core.next_number(), "s", 26),
        ForkSession(core.next_number(), "s", "child", 26),
    ):
        core.expect_refusal(command)
    assert (list(sequence.ids), list(sequence.lease.pages), sequence.committed) == before


@SIZES
@AHEAD
def test_first_turn_cancelled_and_rewound_leaves_no_pages(page_size: int, ahead: int) -> None:
    prompt = prompt_ids(20)
    core = desk_with_turn("s", prompt, 30, page_size=page_size, batched_tokens=8)
    for _ in range(4):
        core.step()
    core.apply(CancelTurn(core.next_number(), "s", drop=True))
    assert core.rewind("s", 0).length == 0
    sequence = core.sequence("s")
    assert (list(sequence.ids), list(sequence.lease.pages), sequence.committed) == ([], [], 0)
    assert core.cache.usage.leased_pages == 0
    core.append("s", prompt[:9])
    core.generate("s", 3, "next")
    core.run(ahead=ahead)
    assert core.turn_ids("s", "next") == oracle(prompt[:9], 3)
    assert core.turn_end("s", "next").prompt_tokens == 9


@SIZES
@AHEAD
def test_later_turn_cancelled_with_drop_keeps_its_prompt_and_kv(page_size: int, ahead: int) -> None:
    """SGLang frees the pages of all 65 tokens; this engine keeps them."""
    core = desk_with_turn("s", prompt_ids(40), 12, page_size=page_size, pages=200)
    core.run(ahead=ahead)
    log = prompt_ids(40) + core.turn_ids("s")
    core.append("s", prompt_ids(13, seed=1))
    core.generate("s", 100, "second")
    for _ in range(5):
        core.step()
    core.apply(CancelTurn(core.next_number(), "s", drop=True))
    log += prompt_ids(13, seed=1)
    assert list(core.sequence("s").ids) == log
    assert core.sequence("s").committed == len(log) == 65
    before = core.runner.token_count
    core.append("s", [5, 6])
    core.generate("s", 2, "third")
    core.run(ahead=ahead)
    assert core.turn_ids("s", "third") == oracle([*log, 5, 6], 2)
    assert core.runner.token_count - before <= 2 + 1 + ahead
    assert core.turn_end("s", "third").cached_tokens == 65


# ---- pages of uncommitted tokens -------------------------------------------------------------


@SIZES
def test_commit_of_fewer_tokens_releases_the_tail_pages(page_size: int) -> None:
    """KV of 26 + 18 tokens is reserved and written, and 38 of them are committed."""
    cache = SessionAwareCache(64, page_size)
    lease = cache.open()
    assert cache.reserve(lease, 26)
    cache.commit(lease, 26)
    assert cache.reserve(lease, 18)
    assert len(lease.pages) == page_count(44, page_size)
    cache.commit(lease, 18, 12)
    assert (lease.committed, lease.reserved) == (38, 0)
    assert len(lease.pages) == page_count(38, page_size)
    assert cache.pool.free_count == 64 - len(lease.pages)
    cache.audit()


@SIZES
@AHEAD
def test_turn_ended_by_length_holds_no_page_beyond_its_kv(page_size: int, ahead: int) -> None:
    core = desk_with_turn("s", prompt_ids(26), 12, page_size=page_size)
    core.run(ahead=ahead)
    sequence = core.sequence("s")
    assert len(sequence.ids) == 38
    assert sequence.committed == 37, "the last id's KV is not computed when a turn ends by length"
    assert len(sequence.lease.pages) == page_count(37, page_size)
    assert core.turn_end("s").output_tokens == 12


@SIZES
def test_step_in_flight_beyond_a_stop_id_is_discarded(page_size: int) -> None:
    """A stop id ends the turn while one more step is in flight."""
    prompt = prompt_ids(26)
    output = oracle(prompt, 12)
    stop = output[4]
    core = CoreHarness(page_size=page_size, batched_tokens=64)
    core.open("s")
    core.append("s", list(prompt))
    core.apply(Generate(core.next_number(), "s", "turn", Sampling(max_tokens=12, stop_ids=(stop,))))
    steps = core.run(ahead=1)
    expected = output[: output.index(stop) + 1]
    assert core.turn_ids("s") == expected
    assert core.turn_end("s").reason == "stop"
    assert steps == len(expected) + 1, "one more step was launched"
    sequence = core.sequence("s")
    assert list(sequence.ids) == prompt + expected
    assert sequence.committed == len(sequence.ids), "the KV of the stop id is kept"
    assert len(sequence.lease.pages) == page_count(sequence.committed, page_size)
    core.append("s", [3])
    core.generate("s", 3, "next")
    core.run(ahead=1)
    assert core.turn_ids("s", "next") == oracle([*prompt, *expected, 3], 3)


# ---- token sharing -------------------------------------------------------------------------


def test_turns_of_a_session_share_one_array_of_ids() -> None:
    """A turn extends the array of ids and copies no earlier id."""
    core = desk_with_turn("s", prompt_ids(10), 3)
    core.run()
    sequence = core.sequence("s")
    ids = sequence.ids
    for turn in range(4):
        core.append("s", [turn])
        core.generate("s", 3, str(turn))
        core.run()
        assert sequence.ids is ids is sequence.log.ids
    assert isinstance(ids, array)
    assert len(ids) == 13 + 16


@AHEAD
def test_session_continues_after_turns_cancelled_midway(ahead: int) -> None:
    core = desk_with_turn("s", prompt_ids(10), 4)
    core.run(ahead=ahead)
    log = prompt_ids(10) + core.turn_ids("s")
    for attempt in range(2):
        core.append("s", [attempt, 8])
        core.generate("s", 50, f"aborted {attempt}")
        for _ in range(4):
            core.step()
        core.apply(CancelTurn(core.next_number(), "s", f"aborted {attempt}", drop=False))
        log += [attempt, 8, *core.turn_ids("s", f"aborted {attempt}")]
        core.append("s", [9])
        core.generate("s", 3, f"next {attempt}")
        core.run(ahead=ahead)
        assert core.turn_ids("s", f"next {attempt}") == oracle([*log, 9], 3)
        log += [9, *core.turn_ids("s", f"next {attempt}")]
    assert list(core.sequence("s").ids) == log


# ---- idle timeouts ---------------------------------------------------------------------------


REJECTED: dict[str, Callable[[int], LoopCommand]] = {
    "too long": lambda n: AppendIds(n, "s", prompt_ids(500)),
    "no such id": lambda n: AppendIds(n, "s", [97]),
    "offset": lambda n: AppendIds(n, "s", [1], offset=1),
    "replace": lambda n: AppendIds(n, "s", [1], replace=True),
    "drop_previous_output": lambda n: AppendIds(n, "s", [1], drop_previous_output=True),
    "rewind too far": lambda n: RewindSession(n, "s", 500),
    "fork too far": lambda n: ForkSession(n, "s", "child", 500),
    "fork onto itself": lambda n: ForkSession(n, "s", "s"),
    "opened twice": lambda n: OpenSession(n, "s"),
    "no room": lambda n: Generate(n, "full", "t", Sampling()),
}


@pytest.mark.parametrize("rejected", REJECTED)
def test_refused_command_does_not_restart_the_idle_timeout(rejected: str) -> None:
    core = CoreHarness(max_model_len=100)
    for name in ("s", "full"):
        core.open(name, timeout_s=10.0)
        core.append(name, prompt_ids(100 if name == "full" else 20))
    core.run()
    core.advance_clock(6.0)
    core.expect_refusal(REJECTED[rejected](core.next_number()))
    core.advance_clock(6.0)
    assert {event.session for event in core.events_of(SessionExpired)} == {"s", "full"}


ACCEPTED: dict[str, Callable[[int], LoopCommand]] = {
    "append": lambda n: AppendIds(n, "s", [1]),
    "provisional": lambda n: AppendIds(n, "s", [1], "provisional"),
    "rewind": lambda n: RewindSession(n, "s", 3),
    "fork": lambda n: ForkSession(n, "s", "child", 3),
    "generate": lambda n: Generate(n, "s", "t", Sampling(max_tokens=1)),
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_accepted_command_restarts_the_idle_timeout(accepted: str) -> None:
    core = CoreHarness()
    core.open("s", timeout_s=10.0)
    core.append("s", prompt_ids(20))
    core.run()
    core.advance_clock(6.0)
    core.apply(ACCEPTED[accepted](core.next_number()))
    core.run()
    core.advance_clock(6.0)
    assert not core.events_of(SessionExpired)
    core.advance_clock(5.0)
    assert "s" in {event.session for event in core.events_of(SessionExpired)}


def test_busy_session_expires_only_after_its_turn_ended() -> None:
    core = CoreHarness()
    for name, streaming in (("regular", False), ("streaming", True), ("empty", True)):
        core.open(name, streaming=streaming, timeout_s=5.0)
        if name != "empty":
            core.append(name, prompt_ids(8))
            core.generate(name, 4)
    core.step()
    core.advance_clock(6.0)
    assert [event.session for event in core.events_of(SessionExpired)] == ["empty"]
    core.run()
    core.advance_clock(6.0)
    assert {event.session for event in core.events_of(SessionExpired)} == {
        "regular",
        "streaming",
        "empty",
    }
    assert core.cache.usage.leased_pages == 0


def test_close_waits_for_the_step_in_flight() -> None:
    """Pages are released, and the close is confirmed, when the step that writes them returns."""
    core = desk_with_turn("s", prompt_ids(8), 20)
    core.step()
    core.launch()
    closing = CloseSession(core.next_number(), "s")
    assert core.submit(closing) is None
    assert core.turn_end("s").reason == "cancelled"
    assert core.expect_refusal(AppendIds(core.next_number(), "s", [1])).code == "unknown_session"
    assert core.cache.usage.leased_pages > 0
    core.collect()
    assert CommandDone(closing.n, 9) in core.events
    assert core.cache.usage.leased_pages == 0


# ---- queued turns cancelled, turns cancelled repeatedly ----------------------------------------


def test_queued_turn_is_cancelled_and_the_running_one_ends() -> None:
    core = desk_with_turn("s", prompt_ids(8), 6)
    queued = Generate(core.next_number(), "s", "queued", Sampling(max_tokens=4))
    assert core.submit(queued) is None
    core.apply(CancelTurn(core.next_number(), "s", "queued"))
    assert [(e.n, e.code) for e in core.events_of(CommandRefused)] == [(queued.n, "cancelled")]
    core.run()
    assert core.turn_ids("s") == oracle(prompt_ids(8), 6)
    assert [end.turn for end in core.events_of(TurnEnded)] == ["turn"]


@AHEAD
def test_turn_cancelled_repeatedly_is_cancelled_once(ahead: int) -> None:
    core = desk_with_turn("s", prompt_ids(8), 20)
    core.step()
    core.launch()
    lengths = [core.apply(CancelTurn(core.next_number(), "s", "turn")).length for _ in range(3)]
    assert len(set(lengths)) == 1
    core.collect()
    assert core.apply(CancelTurn(core.next_number(), "s", "turn")).length == lengths[0]
    assert core.turn_end("s").reason == "cancelled"
    log = prompt_ids(8) + core.turn_ids("s")
    core.generate("s", 3, "next")
    core.apply(CancelTurn(core.next_number(), "s", "turn"))
    core.run(ahead=ahead)
    assert core.turn_ids("s", "next") == oracle(log, 3), (
        "a late cancellation does not cancel the next turn"
    )


# ---- retractions and rewinds -----------------------------------------------------------------


@SIZES
@AHEAD
@pytest.mark.parametrize("step", range(1, 9))
def test_output_after_a_retraction_equals_that_without(
    page_size: int, ahead: int, step: int
) -> None:
    core = desk_with_turn("s", prompt_ids(20), 6, page_size=page_size)
    for _ in range(step):
        if not core.has_turn_ended("s"):
            core.step()
    if not core.has_turn_ended("s"):
        core.scheduler.retract(core.sequence("s"))
        core.cache.audit()
    core.run(ahead=ahead)
    assert core.turn_ids("s") == oracle(prompt_ids(20), 6)
    end = core.turn_end("s")
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", 20, 6)


@SIZES
@AHEAD
def test_five_rewinds_keep_kv_before_them_and_leak_no_page(page_size: int, ahead: int) -> None:
    core = desk_with_turn("s", prompt_ids(30), 8, page_size=page_size)
    core.run(ahead=ahead)
    log = prompt_ids(30) + core.turn_ids("s")
    for turn in range(5):
        length = len(log) - 3 - turn
        before = core.runner.token_count
        assert core.rewind("s", length).length == length
        assert core.sequence("s").committed == length, "a rewind keeps all KV before it"
        log = [*log[:length], turn, 7]
        core.append("s", [turn, 7])
        core.generate("s", 6, str(turn))
        core.run(ahead=ahead)
        assert core.turn_ids("s", str(turn)) == oracle(log, 6)
        assert core.turn_end("s", str(turn)).cached_tokens == length
        assert core.runner.token_count - before <= 2 + 5 + ahead
        log += core.turn_ids("s", str(turn))
        assert len(core.sequence("s").lease.pages) == page_count(len(log) - 1, page_size)
    core.close("s", keep_prefix=False)
    assert core.cache.usage.leased_pages == 0
    assert core.cache.tree.unreferenced == core.cache.tree.size

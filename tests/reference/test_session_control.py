"""Tests of regular sessions: SGLang's list (test_session_control), on this engine.

four chunks, 12 generated       test_four_turns_equal_one_request_each
duplicate open must fail        test_session_cannot_be_opened_twice
erased turn, closed session     test_discarded_turn_and_closed_session_are_unknown
backtrack to the first turn     test_append_after_the_first_turn_reuses_its_kv,
                                test_log_probabilities_after_backtracking_equal_one_request
                                (exactly; SGLang's are within 0.15)
backtrack with an abort         test_branch_with_a_cancelled_turn_can_be_left_and_continued
                                (SGLang skips this test as broken)
branching two by two            test_branches_of_branches_have_their_own_history
logprob_start_len too large     nothing to test: no log-probabilities of prompts
vision variants                 nothing to test: text only
"""

import pytest

from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    CancelTurn,
    CommandRefused,
    Generate,
    OpenSession,
    Sampling,
    TokenLogprobs,
    TurnTokens,
)
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


def regular() -> CoreHarness:
    core = CoreHarness(pages=200)
    core.open("s", streaming=False)
    return core


def run_turn(
    core: CoreHarness, name: str, ids: list[int], ahead: int, **options: object
) -> list[int]:
    core.append("s", ids, **options)
    core.generate("s", 12, name)
    core.run(ahead=ahead)
    return core.turn_ids("s", name)


@AHEAD
def test_four_turns_equal_one_request_each(ahead: int) -> None:
    core, log = regular(), list[int]()
    for n in range(4):
        output = run_turn(core, str(n), prompt_ids(11, seed=n), ahead)
        assert output == oracle(log + prompt_ids(11, seed=n), 12)
        log += prompt_ids(11, seed=n) + output
        assert core.turn_end("s", str(n)).prompt_tokens == len(log) - 12


def test_session_cannot_be_opened_twice() -> None:
    core = regular()
    refused = core.expect_refusal(OpenSession(core.next_number(), "s"))
    assert (refused.field, "already open" in refused.message) == ("session_id", True)


@AHEAD
def test_discarded_turn_and_closed_session_are_unknown(ahead: int) -> None:
    core = regular()
    first = run_turn(core, "a", prompt_ids(9), ahead)
    run_turn(core, "b", prompt_ids(5, seed=1), ahead)
    run_turn(core, "c", [4], ahead, after="a", replace=True)
    assert core.turn_ids("s", "c") == oracle([*prompt_ids(9), *first, 4], 12)
    assert core.expect_refusal(AppendIds(core.next_number(), "s", [1], after="b")).field == "after"
    run_turn(core, "d", [5], ahead, after="a")
    core.close("s")
    assert core.expect_refusal(AppendIds(core.next_number(), "s", [1])).code == "unknown_session"


@AHEAD
@pytest.mark.parametrize("cut", [{"offset": -1}, {"offset": 4}, {"drop_previous_output": True}])
def test_turn_that_continues_a_cut_turn_is_discarded(ahead: int, cut: dict[str, object]) -> None:
    core = regular()
    run_turn(core, "a", prompt_ids(9), ahead)
    run_turn(core, "b", [1], ahead, after="a", **cut)
    run_turn(core, "c", [2], ahead, after="b", **cut)
    run_turn(core, "other", [2], ahead, after="a")
    core.append("s", [4], after="b", replace=True)
    assert core.expect_refusal(AppendIds(core.next_number(), "s", [1], after="c")).field == "after"
    core.append("s", [4], after="other")
    core.append("s", [4], after="a", replace=True)
    for gone in ("b", "other"):
        refused = core.expect_refusal(AppendIds(core.next_number(), "s", [1], after=gone))
        assert refused.field == "after"
    core.append("s", [4], after="a")


@AHEAD
def test_append_after_the_first_turn_reuses_its_kv(ahead: int) -> None:
    core = regular()
    first = run_turn(core, "a", prompt_ids(9), ahead)
    for n in range(3):
        run_turn(core, f"later {n}", prompt_ids(7, seed=n), ahead)
    before = core.runner.token_count
    output = run_turn(core, "back", [1, 2, 3], ahead, after="a")
    assert output == oracle([*prompt_ids(9), *first, 1, 2, 3], 12)
    assert core.runner.token_count - before <= 1 + 3 + 11 + ahead + core.cache.page_size


@AHEAD
def test_log_probabilities_after_backtracking_equal_one_request(ahead: int) -> None:
    """From the third later turn back to the first: equal to one request that sends everything."""
    core = regular()
    log = prompt_ids(9) + run_turn(core, "a", prompt_ids(9), ahead)
    for n in range(3):
        run_turn(core, f"later {n}", prompt_ids(7, seed=n), ahead)
    core.append("s", [1, 2, 3], after="a")
    scored: list[list[TokenLogprobs]] = []
    for session in ("s", "once"):
        if session == "once":
            core.open(session, scope="its own")
            core.append(session, [*log, 1, 2, 3])
        sampling = Sampling(max_tokens=12, logprobs=3)
        core.apply(Generate(core.next_number(), session, "back", sampling))
        core.run(ahead=ahead)
        tokens = [e for e in core.events_of(TurnTokens) if (e.session, e.turn) == (session, "back")]
        scored.append([each for e in tokens for each in e.logprobs or []])
    assert (
        core.turn_ids("s", "back") == core.turn_ids("once", "back") == oracle([*log, 1, 2, 3], 12)
    )
    assert (
        core.turn_end("s", "back").cached_tokens > 0 == core.turn_end("once", "back").cached_tokens
    )
    assert scored[0] == scored[1]
    assert len(scored[0]) == 12


@AHEAD
@pytest.mark.parametrize("steps", [1, 4])
def test_branch_with_a_cancelled_turn_can_be_left_and_continued(ahead: int, steps: int) -> None:
    core = regular()
    first = run_turn(core, "a", prompt_ids(9), ahead)
    run_turn(core, "b", prompt_ids(5, seed=1), ahead)
    core.append("s", [6, 6], after="a")
    core.generate("s", 12, "aborted")
    for _ in range(steps):
        core.step()
    core.apply(CancelTurn(core.next_number(), "s", "aborted"))
    log = [*prompt_ids(9), *first, 6, 6, *core.turn_ids("s", "aborted")]
    assert list(core.sequence("s").ids) == log
    assert run_turn(core, "on", [3], ahead) == oracle([*log, 3], 12)
    assert run_turn(core, "back", [3], ahead, after="a") == oracle([*prompt_ids(9), *first, 3], 12)


@AHEAD
def test_branches_of_branches_have_their_own_history(ahead: int) -> None:
    core = regular()
    root = prompt_ids(9) + run_turn(core, "root", prompt_ids(9), ahead)
    for x in range(2):
        branch = [*root, x, x]
        branch += run_turn(core, f"{x}", [x, x], ahead, after="root")
        assert branch[len(root) + 2 :] == oracle([*root, x, x], 12)
        for y in range(2):
            leaf = run_turn(core, f"{x}{y}", [5, y], ahead, after=f"{x}")
            assert leaf == oracle([*branch, 5, y], 12)


# ---- earlier turns: rewound, appended to, forked, names reused ---------------------------------


def two_turns() -> tuple[CoreHarness, list[int], list[int]]:
    """A session after two turns, its log after the first, and after the second."""
    core = regular()
    first = prompt_ids(5)
    first += run_turn(core, "a", prompt_ids(5), 0)
    second = [*first, 7, 7]
    second += run_turn(core, "b", [7, 7], 0)
    return core, first, second


def drop_and_append(core: CoreHarness, session: str, ids: list[int]) -> list[int]:
    """Append `ids` and drop the previous output. Returns the log."""
    core.append(session, ids, drop_previous_output=True)
    return list(core.sequence(session).ids)


@pytest.mark.parametrize("left", [12, 5, 1, 0])
def test_drop_previous_output_drops_what_a_rewind_has_left(left: int) -> None:
    core, first, _ = two_turns()
    core.rewind("s", len(first) + 2 + left)
    assert drop_and_append(core, "s", [3]) == [*first, 7, 7, 3]
    assert drop_and_append(core, "s", [4]) == [*first, 7, 7, 3, 4], "the output is dropped once"
    assert run_turn(core, "c", [5], 0) == oracle([*first, 7, 7, 3, 4, 5], 12)


def test_turn_that_is_rewound_away_has_no_output_to_drop() -> None:
    core, first, _ = two_turns()
    core.rewind("s", len(first) + 1)
    assert drop_and_append(core, "s", [3]) == [*prompt_ids(5), 7, 3]


def test_drop_previous_output_keeps_ids_appended_after_it() -> None:
    core, first, _ = two_turns()
    core.append("s", [8, 9])
    assert drop_and_append(core, "s", [3]) == [*first, 7, 7, 8, 9, 3]
    assert drop_and_append(core, "s", [4]) == [*first, 7, 7, 8, 9, 3, 4], (
        "the output is dropped once"
    )
    assert run_turn(core, "c", [5], 0) == oracle([*first, 7, 7, 8, 9, 3, 4, 5], 12)


def test_fork_has_the_turns_that_finished_within_it() -> None:
    core, first, second = two_turns()
    core.fork("s", "whole")
    assert drop_and_append(core, "whole", [3]) == [*first, 7, 7, 3]
    core.append("whole", [1], after="a")
    assert list(core.sequence("whole").ids) == [*first, 1]
    core.append("whole", [1], after="b")
    assert list(core.sequence("whole").ids) == [*second, 1]
    core.fork("s", "cut", len(second) - 3)
    assert (
        core.expect_refusal(AppendIds(core.next_number(), "cut", [1], after="b")).field == "after"
    )
    assert drop_and_append(core, "cut", [3]) == [*first, 7, 7, 3]
    core.append("cut", [6], after="a", replace=True)
    assert list(core.sequence("cut").ids) == [*first, 6]
    assert list(core.sequence("s").ids) == second, "the parent is unchanged"
    assert core.append("s", [1], after="a").length == len(first) + 1


def test_name_of_a_turn_that_can_be_continued_is_not_reused() -> None:
    core, first, second = two_turns()
    refused = core.expect_refusal(Generate(core.next_number(), "s", "a", Sampling(max_tokens=3)))
    assert (refused.code, refused.field) == ("bad_request", "turn")
    assert "turn a has already finished in this session" in refused.message
    assert list(core.sequence("s").ids) == second, "the log is unchanged"
    core.append("s", [1], after="a")
    assert list(core.sequence("s").ids) == [*first, 1]
    core.append("s", [2], after="a", replace=True)
    assert run_turn(core, "b", [2], 0)[12:] == oracle([*first, 2, 2], 12), (
        "the name of a discarded turn is free"
    )


def test_queued_turn_with_the_name_of_a_finished_one_is_refused() -> None:
    core = regular()
    core.append("s", [1])
    core.generate("s", 2, "a")
    repeated = Generate(core.next_number(), "s", "a", Sampling(max_tokens=2))
    assert core.submit(repeated) is None
    core.run()
    (refused,) = core.events_of(CommandRefused)
    assert (refused.n, refused.field) == (repeated.n, "turn")
    assert core.turn_ids("s", "a") == oracle([1], 2)


def test_turn_is_requested_again_after_its_client_reattached() -> None:
    """The client lost its link before the response: it attaches the session and sends it again."""
    core = regular()
    first = run_turn(core, "a", [1, 2], 0)
    core.apply(
        AttachSession(
            core.next_number(), OpenSession(core.next_number(), "s", streaming=False), [1, 2]
        )
    )
    assert run_turn(core, "a", [], 0) == first + first

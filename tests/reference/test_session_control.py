"""The reference's list for regular sessions (test_session_control), on our door.

four chunks, 12 generated            test_four_chunks_equal_one_request
duplicate open must fail             test_opening_twice_fails
erased turn, closed session          test_an_erased_turn_and_a_closed_session_are_gone
backtrack to the first turn          test_backtracking_to_the_first_turn,
                                     test_log_probabilities_after_backtracking (exactly those of
                                     one request; there within 0.15)
backtrack with an abort              test_backtracking_with_an_abort (skipped there as broken)
branching two by two                 test_branching_two_by_two
logprob_start_len too large          nothing to test: no log-probabilities of prompts here
vision variants                      nothing to test: text alone
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
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import words

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


def regular() -> Desk:
    desk = Desk(pages=200)
    desk.open("s", streaming=False)
    return desk


def turn(desk: Desk, name: str, ids: list[int], ahead: int, **options: object) -> list[int]:
    desk.append("s", ids, **options)
    desk.generate("s", 12, name)
    desk.run(ahead=ahead)
    return desk.said("s", name)


@AHEAD
def test_four_chunks_equal_one_request(ahead: int) -> None:
    desk, log = regular(), list[int]()
    for n in range(4):
        said = turn(desk, str(n), words(11, seed=n), ahead)
        assert said == oracle(log + words(11, seed=n), 12)
        log += words(11, seed=n) + said
        assert desk.ended("s", str(n)).prompt_tokens == len(log) - 12


def test_opening_twice_fails() -> None:
    desk = regular()
    refused = desk.refuse(OpenSession(desk.n(), "s"))
    assert (refused.field, "already open" in refused.message) == ("session_id", True)


@AHEAD
def test_an_erased_turn_and_a_closed_session_are_gone(ahead: int) -> None:
    desk = regular()
    first = turn(desk, "a", words(9), ahead)
    turn(desk, "b", words(5, seed=1), ahead)
    turn(desk, "c", [4], ahead, after="b", replace=True)
    assert desk.said("s", "c") == oracle([*words(9), *first, 4], 12)
    assert desk.refuse(AppendIds(desk.n(), "s", [1], after="b")).field == "after"
    desk.close("s")
    assert desk.refuse(AppendIds(desk.n(), "s", [1])).code == "unknown_session"


@AHEAD
def test_backtracking_to_the_first_turn(ahead: int) -> None:
    desk = regular()
    first = turn(desk, "a", words(9), ahead)
    for n in range(3):
        turn(desk, f"later {n}", words(7, seed=n), ahead)
    before = desk.runner.tokens_run
    said = turn(desk, "back", [1, 2, 3], ahead, after="a")
    assert said == oracle([*words(9), *first, 1, 2, 3], 12)
    assert desk.runner.tokens_run - before <= 1 + 3 + 11 + ahead + desk.cache.page_size


@AHEAD
def test_log_probabilities_after_backtracking(ahead: int) -> None:
    """To the first turn, from three later ones: those of one request that re-sends everything."""
    desk = regular()
    log = words(9) + turn(desk, "a", words(9), ahead)
    for n in range(3):
        turn(desk, f"later {n}", words(7, seed=n), ahead)
    desk.append("s", [1, 2, 3], after="a")
    scored: list[list[TokenLogprobs]] = []
    for session in ("s", "once"):
        if session == "once":
            desk.open(session, scope="its own")
            desk.append(session, [*log, 1, 2, 3])
        sampling = Sampling(max_tokens=12, logprobs=3)
        desk.do(Generate(desk.n(), session, "back", sampling))
        desk.run(ahead=ahead)
        told = [e for e in desk.heard(TurnTokens) if (e.session, e.turn) == (session, "back")]
        scored.append([each for e in told for each in e.logprobs or []])
    assert desk.said("s", "back") == desk.said("once", "back") == oracle([*log, 1, 2, 3], 12)
    assert desk.ended("s", "back").cached_tokens > 0 == desk.ended("once", "back").cached_tokens
    assert scored[0] == scored[1]
    assert len(scored[0]) == 12


@AHEAD
@pytest.mark.parametrize("steps", [1, 4])
def test_backtracking_with_an_abort(ahead: int, steps: int) -> None:
    desk = regular()
    first = turn(desk, "a", words(9), ahead)
    turn(desk, "b", words(5, seed=1), ahead)
    desk.append("s", [6, 6], after="a")
    desk.generate("s", 12, "aborted")
    for _ in range(steps):
        desk.step()
    desk.do(CancelTurn(desk.n(), "s", "aborted"))
    log = [*words(9), *first, 6, 6, *desk.said("s", "aborted")]
    assert list(desk.sequence("s").ids) == log
    assert turn(desk, "on", [3], ahead) == oracle([*log, 3], 12)
    assert turn(desk, "back", [3], ahead, after="a") == oracle([*words(9), *first, 3], 12)


@AHEAD
def test_branching_two_by_two(ahead: int) -> None:
    desk = regular()
    root = words(9) + turn(desk, "root", words(9), ahead)
    for x in range(2):
        branch = [*root, x, x]
        branch += turn(desk, f"{x}", [x, x], ahead, after="root")
        assert branch[len(root) + 2 :] == oracle([*root, x, x], 12)
        for y in range(2):
            leaf = turn(desk, f"{x}{y}", [5, y], ahead, after=f"{x}")
            assert leaf == oracle([*branch, 5, y], 12)


# ---- what becomes of the turns before: rewound, appended to, forked, named again ---------------


def talked() -> tuple[Desk, list[int], list[int]]:
    """Two turns; with the log after the first, and after the second."""
    desk = regular()
    first = words(5)
    first += turn(desk, "a", words(5), 0)
    second = [*first, 7, 7]
    second += turn(desk, "b", [7, 7], 0)
    return desk, first, second


def drop(desk: Desk, session: str, ids: list[int]) -> list[int]:
    """The log after an append that drops the previous output."""
    desk.append(session, ids, drop_previous_output=True)
    return list(desk.sequence(session).ids)


@pytest.mark.parametrize("left", [12, 5, 1, 0])
def test_dropped_is_what_a_rewind_has_left_of_the_last_answer(left: int) -> None:
    desk, first, _ = talked()
    desk.rewind("s", len(first) + 2 + left)
    assert drop(desk, "s", [3]) == [*first, 7, 7, 3]
    assert drop(desk, "s", [4]) == [*first, 7, 7, 3, 4], "it has been dropped already"
    assert turn(desk, "c", [5], 0) == oracle([*first, 7, 7, 3, 4, 5], 12)


def test_a_turn_that_is_rewound_away_is_not_the_last() -> None:
    desk, first, _ = talked()
    desk.rewind("s", len(first) + 1)
    assert drop(desk, "s", [3]) == [*words(5), 7, 3]


def test_what_was_appended_behind_the_last_answer_is_not_dropped_with_it() -> None:
    desk, first, _ = talked()
    desk.append("s", [8, 9])
    assert drop(desk, "s", [3]) == [*first, 7, 7, 8, 9, 3]
    assert drop(desk, "s", [4]) == [*first, 7, 7, 8, 9, 3, 4], "it has been dropped already"
    assert turn(desk, "c", [5], 0) == oracle([*first, 7, 7, 8, 9, 3, 4, 5], 12)


def test_a_fork_has_the_turns_that_finished_in_it() -> None:
    desk, first, second = talked()
    desk.fork("s", "whole")
    assert drop(desk, "whole", [3]) == [*first, 7, 7, 3]
    desk.append("whole", [1], after="a")
    assert list(desk.sequence("whole").ids) == [*first, 1]
    desk.append("whole", [1], after="b")
    assert list(desk.sequence("whole").ids) == [*second, 1]
    desk.fork("s", "cut", len(second) - 3)
    assert desk.refuse(AppendIds(desk.n(), "cut", [1], after="b")).field == "after"
    assert drop(desk, "cut", [3]) == [*first, 7, 7, 3]
    desk.append("cut", [6], after="a", replace=True)
    assert list(desk.sequence("cut").ids) == [6]
    assert list(desk.sequence("s").ids) == second, "the parent is as it was"
    assert desk.append("s", [1], after="a").length == len(first) + 1


def test_a_name_that_can_be_gone_on_from_is_not_given_twice() -> None:
    desk, first, second = talked()
    refused = desk.refuse(Generate(desk.n(), "s", "a", Sampling(max_tokens=3)))
    assert (refused.code, refused.field) == ("bad_request", "turn")
    assert "turn a has already finished in this session" in refused.message
    assert list(desk.sequence("s").ids) == second, "nothing has changed"
    desk.append("s", [1], after="a")
    assert list(desk.sequence("s").ids) == [*first, 1]
    desk.append("s", [2], after="a", replace=True)
    assert turn(desk, "b", [2], 0)[12:] == oracle([2, 2], 12), "what was replaced has left its name"


def test_a_queued_turn_whose_name_has_been_taken_is_refused_in_its_turn() -> None:
    desk = regular()
    desk.append("s", [1])
    desk.generate("s", 2, "a")
    again = Generate(desk.n(), "s", "a", Sampling(max_tokens=2))
    assert desk.tell(again) is None
    desk.run()
    (refused,) = desk.heard(CommandRefused)
    assert (refused.n, refused.field) == (again.n, "turn")
    assert desk.said("s", "a") == oracle([1], 2)


def test_a_turn_whose_front_never_heard_of_it_may_be_asked_for_again() -> None:
    """Its link was lost before the answer came: it says what it knows, and asks once more."""
    desk = regular()
    first = turn(desk, "a", [1, 2], 0)
    desk.do(AttachSession(desk.n(), OpenSession(desk.n(), "s", streaming=False), [1, 2]))
    assert turn(desk, "a", [], 0) == first + first

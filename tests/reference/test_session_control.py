"""The reference's list for regular sessions (test_session_control), on our door.

four chunks, 12 generated            test_four_chunks_equal_one_request
duplicate open must fail             test_opening_twice_fails
erased turn, closed session          test_an_erased_turn_and_a_closed_session_are_gone
backtrack to the first turn          test_backtracking_to_the_first_turn
backtrack with an abort              test_backtracking_with_an_abort (skipped there as broken)
branching two by two                 test_branching_two_by_two
logprob_start_len too large          nothing to test: no log-probabilities of prompts here
vision variants                      nothing to test: text alone
"""

import pytest

from engine.messages import Append, Cancel, Open
from tests.support.desk import Desk
from tests.support.digest_runner import oracle
from tests.support.talks import words

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
    refused = desk.refuse(Open(desk.n(), "s"))
    assert (refused.field, "already open" in refused.message) == ("session_id", True)


@AHEAD
def test_an_erased_turn_and_a_closed_session_are_gone(ahead: int) -> None:
    desk = regular()
    first = turn(desk, "a", words(9), ahead)
    turn(desk, "b", words(5, seed=1), ahead)
    turn(desk, "c", [4], ahead, after="b", replace=True)
    assert desk.said("s", "c") == oracle([*words(9), *first, 4], 12)
    assert desk.refuse(Append(desk.n(), "s", [1], after="b")).field == "after"
    desk.close("s")
    assert desk.refuse(Append(desk.n(), "s", [1])).code == "unknown_session"


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
@pytest.mark.parametrize("steps", [1, 4])
def test_backtracking_with_an_abort(ahead: int, steps: int) -> None:
    desk = regular()
    first = turn(desk, "a", words(9), ahead)
    turn(desk, "b", words(5, seed=1), ahead)
    desk.append("s", [6, 6], after="a")
    desk.generate("s", 12, "aborted")
    for _ in range(steps):
        desk.step()
    desk.do(Cancel(desk.n(), "s", "aborted"))
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

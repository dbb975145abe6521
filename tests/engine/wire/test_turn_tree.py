"""Tests of the bounds of the turns that a regular session can branch from."""

from array import array

import pytest

from continuo.engine.errors import BadRequest
from continuo.engine.wire import turn_tree
from continuo.engine.wire.turn_tree import TurnTree


def ids_after(tree: TurnTree, turn: str) -> list[int]:
    base = tree.find_base(array("i"), turn, replace=False, drop_previous_output=False, offset=0)
    return list(base.ids)


def run_turn(tree: TurnTree, turn: str, ids: "array[int]", count: int) -> "array[int]":
    grown = ids + array("i", range(count))
    tree.record(turn, grown, len(ids))
    return grown


def test_oldest_turns_are_removed_above_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_tree, "FINISHED_TURNS_MAX", 10)
    tree, log = TurnTree(), array("i")
    for n in range(25):
        log = run_turn(tree, f"t{n}", log, 3)
    with pytest.raises(BadRequest, match="not among its last 10 turns"):
        tree.find_base(log, "t14", replace=False, drop_previous_output=False, offset=0)
    for n in range(15, 25):
        assert ids_after(tree, f"t{n}") == [0, 1, 2] * (n + 1)
    tree.check_unused("t14")


def test_ids_of_abandoned_branches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_tree, "FINISHED_IDS_MAX", 1_000)
    tree = TurnTree()
    run_turn(tree, "root", array("i", [7]), 50)
    for n in range(40):
        base = tree.find_base(
            array("i"),
            "root" if n < 3 else f"branch {n - 1}",
            replace=False,
            drop_previous_output=False,
            offset=0,
        )
        tree.apply_base(base)
        run_turn(tree, f"branch {n}", base.ids, 300)
    assert tree._ids <= 1_000
    assert len(tree._finished) == 3
    assert len(ids_after(tree, "branch 39")) == 51 + 38 * 300

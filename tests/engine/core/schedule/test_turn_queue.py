"""Tests of the order of waiting turns: groups by virtual time; priority and due step."""

from collections import defaultdict
from collections.abc import Collection

from continuo.engine.core.cache import PageLease
from continuo.engine.core.schedule.turn_queue import IDLE_GROUPS_MIN, TurnQueue
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn
from continuo.engine.sampling import Sampling
from continuo.engine.wire.token_log import TokenLog


class QueueHarness:
    def __init__(self) -> None:
        self.queue = TurnQueue()
        self.arrivals = 0

    def push(
        self,
        name: str,
        due: float,
        *,
        group: str = "",
        weight: float = 1.0,
        priority: int = 0,
    ) -> Sequence:
        sequence = Sequence(name, PageLease(""), TokenLog(10_000, streaming=True), None, 0.0)
        sequence.group, sequence.weight = group, weight
        turn = Turn("turn", Sampling(priority=priority), 0, 10, None, None, 0.0)
        self.arrivals += 1
        turn.arrival, turn.due_step = self.arrivals, due
        sequence.turn = turn
        self.queue.push(sequence)
        return sequence

    def first(self, skipped: Collection[str] = ()) -> Sequence | None:
        return next(self.queue.in_order(skipped, {}), None)

    def serve_all(self, tokens: int = 0) -> list[str]:
        """Serve all turns, one in each step, and compute `tokens` of each. Returns their names."""
        names: list[str] = []
        while (sequence := self.first()) is not None:
            names.append(sequence.id)
            self.queue.charge(sequence.group, tokens / sequence.weight)
            self.queue.remove(sequence)
        return names

    def order(self, tokens: int = 0) -> list[str]:
        """Return the names of all turns as they are served in one step, `tokens` of each."""
        served: defaultdict[str, float] = defaultdict(float)
        names: list[str] = []
        for sequence in self.queue.in_order((), served):
            names.append(sequence.id)
            served[sequence.group] += tokens / sequence.weight
        return names


def test_first_due_is_first_and_equal_ones_by_arrival() -> None:
    harness = QueueHarness()
    for name, due in (("c", 3), ("a", 1), ("d", 3), ("b", 2.5)):
        harness.push(name, due)
    assert harness.order() == harness.serve_all() == ["a", "b", "c", "d"]


def test_place_changes_with_the_due_step() -> None:
    harness = QueueHarness()
    harness.push("first", 3)
    second = harness.push("second", 4)
    assert second.turn is not None
    for due, order in ((4, ["first", "second"]), (2, ["second", "first"])):
        second.turn.due_step = due
        harness.queue.push(second)
        assert harness.order() == order
        assert len(harness.queue.places) == 2


def test_lower_priority_number_is_before_a_turn_that_is_due() -> None:
    harness = QueueHarness()
    harness.push("due", 0)
    harness.push("urgent", 500, priority=-1)
    harness.push("later", 0, priority=1)
    assert harness.order() == ["urgent", "due", "later"]


def test_groups_are_served_by_weight() -> None:
    harness = QueueHarness()
    for n in range(6):
        harness.push(f"a{n}", 100, group="a", weight=2.0)
        harness.push(f"b{n}", 100, group="b")
    in_one_step = harness.order(tokens=100)
    assert sorted(name[0] for name in in_one_step[:6]) == ["a"] * 4 + ["b"] * 2
    assert harness.serve_all(tokens=100) == in_one_step


def test_group_saves_nothing_up_while_it_has_no_turns() -> None:
    harness = QueueHarness()
    for n in range(10):
        harness.push(f"a{n}", 100, group="a")
    for _ in range(8):
        served = harness.first()
        assert served is not None
        harness.queue.charge("a", 100)
        harness.queue.remove(served)
    for n in range(4):
        harness.push(f"b{n}", 100, group="b")
    assert harness.serve_all(tokens=100) == ["b0", "a8", "b1", "a9", "b2", "b3"]


def test_skipped_groups_keep_their_place() -> None:
    harness = QueueHarness()
    a, b = harness.push("a", 5, group="a"), harness.push("b", 5, group="b")
    assert harness.first(skipped={"a"}) is b
    assert harness.first() is a


def test_group_that_is_skipped_meanwhile_is_left_out() -> None:
    harness = QueueHarness()
    for n in range(2):
        harness.push(f"a{n}", 5, group="a")
        harness.push(f"b{n}", 5, group="b")
    skipped: set[str] = set()
    names: list[str] = []
    for sequence in harness.queue.in_order(skipped, {}):
        names.append(sequence.id)
        skipped.add(sequence.group)
    assert names == ["a0", "b0"]


def test_group_that_had_more_than_its_share_does_not_come_first_when_it_returns() -> None:
    harness = QueueHarness()
    other = harness.push("b", 5, group="b")
    greedy = harness.push("a0", 500, group="a")
    harness.queue.charge("a", 500)
    harness.queue.remove(greedy)
    harness.push("a1", 5, group="a")
    assert harness.first() is other


def test_nothing_is_kept_of_turns_and_groups_that_have_left() -> None:
    harness = QueueHarness()
    kept = harness.push("kept", 1_000)
    for n in range(3 * IDLE_GROUPS_MIN):
        removed = harness.push(f"r{n}", 2_000, group=f"group {n}")
        urgent = harness.push(f"u{n}", 0)
        assert harness.first() is urgent
        for sequence in (removed, urgent, urgent):
            harness.queue.remove(sequence)
    assert harness.first() is kept
    assert len(harness.queue.places) == len(harness.queue._order) == 1
    assert len(harness.queue._groups) <= IDLE_GROUPS_MIN + 2

"""Tests of the order of waiting turns: groups by virtual time; priority, due step and length."""

from continuo.engine.core.cache import PageLease
from continuo.engine.core.schedule.turn_queue import TurnQueue
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
        tokens: int,
        *,
        group: str = "",
        weight: float = 1.0,
        priority: int = 0,
        due: int = 1_000,
    ) -> Sequence:
        sequence = Sequence(name, PageLease(""), TokenLog(10_000, streaming=True), None, 0.0)
        sequence.group, sequence.weight = group, weight
        turn = Turn("turn", Sampling(priority=priority), 0, 10, None, None, 0.0)
        self.arrivals += 1
        turn.arrival, turn.due_step = self.arrivals, due
        sequence.turn = turn
        self.queue.push(sequence, tokens)
        return sequence

    def pop_all(self, step: int = 0, charge: int = 0) -> list[str]:
        names: list[str] = []
        while (sequence := self.queue.pop(step)) is not None:
            names.append(sequence.id)
            self.queue.charge(sequence, charge)
        return names


def test_shortest_is_first_and_equal_ones_by_arrival() -> None:
    harness = QueueHarness()
    for name, tokens in (("c", 300), ("a", 100), ("d", 300), ("b", 200)):
        harness.push(name, tokens)
    assert harness.pop_all() == ["a", "b", "c", "d"]


def test_due_turns_are_before_shorter_ones_by_arrival() -> None:
    harness = QueueHarness()
    harness.push("long", 900, due=20)
    harness.push("longer", 950, due=10)
    harness.push("short", 1, due=30)
    assert harness.pop_all(step=19) == ["longer", "short", "long"]
    for name, tokens, due in (("long", 900, 20), ("longer", 950, 10), ("short", 1, 30)):
        harness.push(name, tokens, due=due)
    assert harness.pop_all(step=20) == ["long", "longer", "short"]


def test_lower_priority_number_is_before_a_due_turn() -> None:
    harness = QueueHarness()
    harness.push("due", 10, due=0)
    harness.push("urgent", 500, priority=-1)
    harness.push("later", 1, priority=1, due=0)
    assert harness.pop_all(step=5) == ["urgent", "due", "later"]


def test_groups_are_served_by_weight() -> None:
    harness = QueueHarness()
    for n in range(6):
        harness.push(f"a{n}", 100, group="a", weight=2.0)
        harness.push(f"b{n}", 100, group="b")
    first = harness.pop_all(charge=100)[:6]
    assert sorted(name[0] for name in first) == ["a"] * 4 + ["b"] * 2


def test_group_saves_nothing_up_while_it_has_no_turns() -> None:
    harness = QueueHarness()
    for n in range(10):
        harness.push(f"a{n}", 100, group="a")
    for _ in range(8):
        popped = harness.queue.pop(0)
        assert popped is not None
        harness.queue.charge(popped, 100)
    for n in range(4):
        harness.push(f"b{n}", 100, group="b")
    assert harness.pop_all(charge=100) == ["b0", "a8", "b1", "a9", "b2", "b3"]


def test_skipped_groups_keep_their_place() -> None:
    harness = QueueHarness()
    a, b = harness.push("a", 5, group="a"), harness.push("b", 5, group="b")
    assert harness.queue.pop(0, {"a"}) is b
    assert harness.queue.pop(0, {"a"}) is None
    assert list(harness.queue.turns) == [a]
    assert harness.queue.pop(0) is a
    assert not harness.queue.turns


def test_removed_turn_is_not_popped_and_its_entries_do_not_pile_up() -> None:
    harness = QueueHarness()
    kept = harness.push("kept", 1_000_000)
    for n in range(5_000):
        removed, served = harness.push(f"r{n}", 2_000_000), harness.push(f"s{n}", 1)
        assert harness.queue.pop(0) is served
        harness.queue.remove(removed)
    [group] = harness.queue._groups.values()
    assert group._heaps is not None
    assert len(group._heaps._by_tokens) < 100
    assert len(group._heaps._by_due_step) < 100
    assert harness.queue.pop(0) is kept
    assert group._heaps is None, "a group without turns refers to sequences that have left"


def test_turn_that_is_queued_again_keeps_its_place() -> None:
    harness = QueueHarness()
    first, _ = harness.push("first", 100), harness.push("second", 100)
    assert harness.queue.pop(0) is first
    harness.queue.push(first, 100)
    assert harness.pop_all() == ["first", "second"]

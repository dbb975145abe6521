"""Tests of a regular session that branches while no step has a row for it."""

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle


def test_branch_without_a_row_is_idle_and_its_pages_evictable() -> None:
    """The lease of the branch is idle at once, so that the audit counts its pages as evictable."""
    desk = CoreHarness(rows=1)
    desk.open("busy")
    desk.append("busy", [1, 2])
    desk.open("s", streaming=False)
    log = list(range(12))
    for turn, new, after in (("a", log, None), ("b", [7] * 10, "a"), ("c", [2, 2], "a")):
        desk.append("s", list(new), after=after)
        desk.generate("s", 5, turn)
        desk.run()
    desk.generate("busy", 30)
    desk.step()
    assert desk.sequence("busy").turn
    desk.append("s", [3], after="b")
    desk.cache.audit()
    desk.step()
    desk.generate("s", 3, "d")
    desk.run()
    b = [*log, *desk.turn_ids("s", "a"), *[7] * 10, *desk.turn_ids("s", "b")]
    assert desk.turn_ids("s", "d") == oracle([*b, 3], 3)

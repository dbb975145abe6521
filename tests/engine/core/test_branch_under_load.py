"""Tests of a regular session that branches while no step has a row for it."""

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle


def test_branch_without_a_row_is_idle_and_its_pages_evictable() -> None:
    """The lease of the branch is idle at once, so that the audit counts its pages as evictable."""
    core = CoreHarness(rows=1)
    core.open("busy")
    core.append("busy", [1, 2])
    core.open("s", streaming=False)
    log = list(range(12))
    for turn, new, after in (("a", log, None), ("b", [7] * 10, "a"), ("c", [2, 2], "a")):
        core.append("s", list(new), after=after)
        core.generate("s", 5, turn)
        core.run()
    core.generate("busy", 30)
    core.step()
    assert core.sequence("busy").turn
    core.append("s", [3], after="b")
    core.cache.audit()
    core.step()
    core.generate("s", 3, "d")
    core.run()
    b = [*log, *core.turn_ids("s", "a"), *[7] * 10, *core.turn_ids("s", "b")]
    assert core.turn_ids("s", "d") == oracle([*b, 3], 3)

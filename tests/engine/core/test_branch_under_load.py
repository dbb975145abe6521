"""A regular session takes up a branch that the tree knows, while a step has no room for it."""

from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle


def test_a_branch_taken_up_rests_with_its_pages() -> None:
    """Its lease is idle, so that its pages can be given away; the books say so at once."""
    desk = Desk(rows=1)
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
    b = [*log, *desk.said("s", "a"), *[7] * 10, *desk.said("s", "b")]
    assert desk.said("s", "d") == oracle([*b, 3], 3)

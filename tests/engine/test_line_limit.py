"""The limit on log lines of a kind."""

from continuo.engine.line_limit import KINDS_MAX, LineLimit


def test_line_limit_holds_few_kinds() -> None:
    limit = LineLimit()
    for number in range(10 * KINDS_MAX):
        assert limit.admit(f"kind {number}") == 0
    assert len(limit) == KINDS_MAX


def test_lines_of_a_minute_above_the_limit_are_counted() -> None:
    now_s = 0.0
    limit = LineLimit(lambda: now_s, lines_per_minute=1)
    assert [limit.admit("kind") for _ in range(4)] == [0, None, None, None]
    assert limit.admit("another kind") == 0
    now_s = 61.0
    assert [limit.admit("kind") for _ in range(2)] == [3, None]

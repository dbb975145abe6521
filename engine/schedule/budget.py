"""Budget: what is left of one step, in tokens and rows; and how a share of it is cut."""

from collections.abc import Sequence


class Budget:
    def __init__(self, tokens: int, rows: int) -> None:
        self.tokens = tokens
        self.rows = rows

    def spend(self, tokens: int) -> None:
        self.tokens -= tokens
        self.rows -= 1


def allot(wanted: Sequence[int], tokens: int) -> list[int]:
    """Cuts `tokens` among those who want some, oldest first: an equal share to each, so that a
    short turn never stands behind a long cold prompt; what they leave goes to the oldest."""
    if not wanted:
        return []
    share = max(tokens // len(wanted), 1)
    given: list[int] = []
    for want in wanted:
        given.append(min(want, share, tokens))
        tokens -= given[-1]
    for index, want in enumerate(wanted):
        more = min(want - given[index], tokens)
        given[index] += more
        tokens -= more
    return given

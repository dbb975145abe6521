"""Budget: what is left of one step. StepTime: what a step costs, learnt while running.

A step's budget is time, because one query over 40,000 tokens of context is not one token's work:

    seconds ≈ a + b · rows + c · tokens + d · Σ tokens · context
"""

from collections.abc import Sequence
from typing import NamedTuple


class StepLoad(NamedTuple):
    """What a step makes the device do."""

    rows: int = 0
    tokens: int = 0
    attention: int = 0
    """Sum over rows of tokens times context."""

    def with_row(self, start: int, tokens: int) -> "StepLoad":
        """With one row more: `tokens` of a sequence that has `start` in KV."""
        over = tokens * start + tokens * tokens // 2
        return StepLoad(self.rows + 1, self.tokens + tokens, self.attention + over)


class StepBudget:
    """Tokens and rows left in a step, and the load planned so far."""

    def __init__(self, tokens: int, rows: int) -> None:
        self.remaining_tokens = tokens
        self.remaining_rows = rows
        self._spent_rows = 0
        self._spent_tokens = 0
        self._attention = 0

    @property
    def load(self) -> StepLoad:
        return StepLoad(self._spent_rows, self._spent_tokens, self._attention)

    def spend(self, start: int, tokens: int) -> None:
        self.remaining_tokens -= tokens
        self.remaining_rows -= 1
        self._spent_rows += 1
        self._spent_tokens += tokens
        self._attention += tokens * start + tokens * tokens // 2

    def __bool__(self) -> bool:
        return self.remaining_tokens > 0 and self.remaining_rows > 0


def allot(demands: Sequence[int], tokens: int) -> list[int]:
    """Cuts `tokens` among those who want some, oldest first: an equal share to each, so that nobody
    stands behind a longer one; what they leave goes to the oldest."""
    if not demands:
        return []
    share = max(tokens // len(demands), 1)
    given: list[int] = []
    for want in demands:
        given.append(min(want, share, tokens))
        tokens -= given[-1]
    for index, want in enumerate(demands):
        more = min(want - given[index], tokens)
        given[index] += more
        tokens -= more
    return given

"""StepBudget: the tokens and rows left in a step. StepLoad: the work of a step.

The cost of a step is time, not tokens: one query over 40,000 tokens of context is more than one
token's work. The model of that time (step_time_model.py):

    seconds ≈ a + b · rows + c · tokens + d · Σ tokens · context
"""

import msgspec


class StepLoad(msgspec.Struct, frozen=True, gc=False):
    """Work of a step: the features that its duration depends on."""

    rows: int = 0
    tokens: int = 0
    attention: int = 0
    """Sum over rows of tokens times context."""

    def with_row(self, start: int, tokens: int) -> "StepLoad":
        """Return the load with one more row: `tokens` of a sequence with `start` tokens in KV."""
        over = tokens * start + tokens * tokens // 2
        return StepLoad(self.rows + 1, self.tokens + tokens, self.attention + over)


class StepBudget:
    """Tokens and rows left in a step, and the load planned so far."""

    __slots__ = ("_attention", "_rows", "_tokens", "remaining_rows", "remaining_tokens")

    def __init__(self, tokens: int, rows: int) -> None:
        self._tokens = self.remaining_tokens = tokens
        self._rows = self.remaining_rows = rows
        self._attention = 0

    @property
    def load(self) -> StepLoad:
        return StepLoad(
            self._rows - self.remaining_rows,
            self._tokens - self.remaining_tokens,
            self._attention,
        )

    def spend(self, start: int, tokens: int) -> None:
        self.remaining_tokens -= tokens
        self.remaining_rows -= 1
        self._attention += tokens * start + tokens * tokens // 2

    def __bool__(self) -> bool:
        return self.remaining_tokens > 0 and self.remaining_rows > 0

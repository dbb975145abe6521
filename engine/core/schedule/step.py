"""StepPlan: the rows of one step. StepLoad: their work.

The cost of a step is time, not tokens: one query over 40,000 tokens of context is more than one
token's work. The model of that time (step_time.py):

    seconds ≈ a + b · rows + c · tokens + d · Σ tokens · context
"""

from array import array

import msgspec

from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import NO_DRAFTS
from continuo.engine.core.turn import Turn


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


class ScheduledRow(msgspec.Struct, frozen=True):
    """A row: the next `tokens` tokens of a sequence. If `turn` is given, an output id of that turn
    is drawn from the logits of the last token; with `drafts`, which are the last ones of `tokens`,
    from those of the token before them and of each draft."""

    sequence: Sequence
    start: int
    """Position of its first token, up to which KV is computed or in flight."""
    tokens: int
    turn: Turn | None
    drafts: "array[int]" = NO_DRAFTS
    """While they are in flight they are promised, in place of the id that the row draws for
    certain, so that the turn owes nothing and has no other row."""

    @property
    def is_needed(self) -> bool:
        """Whether the row is still useful: it draws no id, or its turn has not ended."""
        return self.turn is None or self.turn is self.sequence.turn


class StepPlan(msgspec.Struct, frozen=True):
    """The rows of a step, at most one of each sequence, and its load."""

    rows: list[ScheduledRow]
    load: StepLoad
    discardable_s: float = 0.0
    """Seconds that may be lost if the step is discarded because a short turn begins; 0 or less: it
    may not be discarded. Only steps without live rows (decodes and short turns) may."""

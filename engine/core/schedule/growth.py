"""How many pages turns will need: an estimate of their outputs that learns, and the peak of the
pages of all turns over time. Pure.

    pages      turn a ────────────┐ ends, and its pages are free
               turn b ──────────────────────┐
               sum    ────────── peak ┐─────└───
               now               time in output ids

Turns grow at the same rate, so the sum has its peaks where turns end. The peak of a set of turns
that will end one after the other is far below the sum of their final pages.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

OUTPUT_TOKENS_AT_FIRST = 512
"""Tokens of an output expected before any turn has ended."""
OUTPUTS_REMEMBERED = 128
"""Number of past outputs that the estimate is made from."""


class OutputEstimate:
    """Expected length of outputs, from those of the last turns, cancelled ones included."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=OUTPUTS_REMEMBERED)
        self._sorted: list[int] = []
        self._sums: list[int] | None = None
        """Sums of the longest 0, 1, 2, … of `_sorted`; None if an output was recorded since."""

    def observe(self, output_tokens: int) -> None:
        """Record the output of a turn that has ended."""
        self._recent.append(output_tokens)
        self._sums = None

    def remaining_tokens(self, output_tokens: int, limit: int) -> int:
        """Return the expected further output of a turn that has `output_tokens` and may have
        `limit`: the mean of the longer ones among the last outputs; if there is none, as much
        again."""
        if self._sums is None:
            self._sorted = sorted(self._recent)
            self._sums = list(accumulate(reversed(self._sorted), initial=0))
        longer = len(self._sorted) - bisect_right(self._sorted, output_tokens)
        if not self._sorted:
            expected = max(OUTPUT_TOKENS_AT_FIRST, 2 * output_tokens)
        elif longer:
            expected = -(-self._sums[longer] // longer)
        else:
            expected = 2 * output_tokens + 1
        return max(min(expected, limit) - output_tokens, 0)


class Growth(NamedTuple):
    """Expected growth of one turn, in tokens."""

    remaining_tokens: int
    """Tokens that it will still write, until it ends."""
    held_tokens: int
    """Tokens of the pages that become free when it ends: not of those shared with other leases."""


def compute_peak_tokens(growths: Sequence[Growth]) -> int:
    """Return the most tokens that turns hold at once, if each draws one id at a time and releases
    its pages when it ends."""
    peak = held = 0
    for count, (remaining, own) in enumerate(sorted(growths, reverse=True), 1):
        held += own
        peak = max(peak, held + count * remaining)
    return peak

"""What a run of many turns gave: seconds, and words."""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass
class Turns:
    """Seconds of each turn but the first, [session][turn], and all that was said, [session]."""

    wall: list[list[float]]
    outside: list[list[float]]
    """Less the time the device worked while the turn lasted; perhaps of some sessions only."""
    said: list[list[Any]]

    @classmethod
    def of(cls, lives: "list[tuple[list[float], list[float], list[Any]]]") -> "Turns":
        """From (wall, outside, said) of each session; the first turn is dropped."""
        return cls([x[0][1:] for x in lives], [x[1][1:] for x in lives], [x[2] for x in lives])

    def mean_ms(self, rows: list[list[float]], last: int | None = None) -> float:
        kept = [row[-last:] if last else row for row in rows]
        return statistics.fmean(itertools.chain.from_iterable(kept)) * 1e3

    def flatness(self, rows: list[list[float]]) -> float:
        """Mean of the last ten turns over that of turns 2 to 11."""
        return self.mean_ms(rows, 10) / self.mean_ms([row[:10] for row in rows])

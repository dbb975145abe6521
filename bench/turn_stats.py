"""What a run of many turns gave: seconds, and words."""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass
class TurnTimings:
    """Seconds of each turn but the first, [session][turn], and all that was said, [session]."""

    wall_s: list[list[float]]
    outside_model_s: list[list[float]]
    """Less the time the device worked while the turn lasted; perhaps of some sessions only."""
    outputs: list[list[Any]]

    @classmethod
    def from_sessions(
        cls, sessions: "list[tuple[list[float], list[float], list[Any]]]"
    ) -> "TurnTimings":
        """From (wall, outside, said) of each session; the first turn is dropped."""
        return cls(
            [x[0][1:] for x in sessions], [x[1][1:] for x in sessions], [x[2] for x in sessions]
        )

    def mean_ms(self, rows: list[list[float]], last: int | None = None) -> float:
        kept = [row[-last:] if last else row for row in rows]
        return statistics.fmean(itertools.chain.from_iterable(kept)) * 1e3

    def flatness(self, rows: list[list[float]]) -> float:
        """Mean of the last ten turns over that of turns 2 to 11."""
        return self.mean_ms(rows, 10) / self.mean_ms([row[:10] for row in rows])

"""Timings and outputs of a run of many turns."""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass
class TurnTimings:
    """Seconds of each turn except the first, [session][turn], and all outputs, [session]."""

    wall_s: list[list[float]]
    outside_model_s: list[list[float]]
    """Wall clock less the device's busy time during the turn; may cover only some sessions."""
    outputs: list[list[Any]]

    @classmethod
    def from_sessions(
        cls, sessions: "list[tuple[list[float], list[float], list[Any]]]"
    ) -> "TurnTimings":
        """Build from (wall, outside model, outputs) of each session, without the first turn."""
        return cls(
            [x[0][1:] for x in sessions], [x[1][1:] for x in sessions], [x[2] for x in sessions]
        )

    def mean_ms(self, rows: list[list[float]], last: int | None = None) -> float:
        kept = [row[-last:] if last else row for row in rows]
        return statistics.fmean(itertools.chain.from_iterable(kept)) * 1e3

    def flatness(self, rows: list[list[float]]) -> float:
        """Return the mean of the last ten turns over that of turns 2 to 11."""
        return self.mean_ms(rows, 10) / self.mean_ms([row[:10] for row in rows])

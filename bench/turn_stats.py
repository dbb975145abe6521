"""Timings and outputs of all turns of a benchmark run."""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass
class TurnTimings:
    """Timings in seconds, and outputs, of the turns of a run, as [session][turn]. The timings leave
    out the first turn of each session; the outputs do not."""

    wall_s: list[list[float]]
    outside_model_s: list[list[float]]
    """Wall clock of each turn less the busy time of the device during the turn. May have fewer
    sessions than `wall_s`."""
    outputs: list[list[Any]]

    @classmethod
    def from_sessions(
        cls, sessions: "list[tuple[list[float], list[float], list[Any]]]"
    ) -> "TurnTimings":
        """Build from (`wall_s`, `outside_model_s`, `outputs`) of all turns of each session."""
        return cls(
            [x[0][1:] for x in sessions], [x[1][1:] for x in sessions], [x[2] for x in sessions]
        )

    def mean_ms(self, rows: list[list[float]], last: int | None = None) -> float:
        kept = [row[-last:] if last else row for row in rows]
        return statistics.fmean(itertools.chain.from_iterable(kept)) * 1e3

    def flatness(self, rows: list[list[float]]) -> float:
        """Return the mean of the last ten turns divided by the mean of turns 2 to 11.

        `rows`: `wall_s` or `outside_model_s`.
        """
        return self.mean_ms(rows, 10) / self.mean_ms([row[:10] for row in rows])

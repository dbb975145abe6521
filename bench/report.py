"""The report of a benchmark, as a printed table and as JSON."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

Cell = str | int | float | None
ReportRow = Mapping[str, Cell]


@dataclass
class Report:
    """Figures of a benchmark. `rows` are in the table and in the JSON, `notes` only below the
    table, `facts` only in the JSON."""

    title: str
    rows: Sequence[ReportRow]
    rows_key: str = "rows"
    """Key of the list of rows in the JSON."""
    notes: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict[str, object])

    def render(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [[_format_cell(row.get(name)) for name in names] for row in self.rows]
        widths = [
            max(len(name), *(len(row[column]) for row in cells))
            for column, name in enumerate(names)
        ]

        def render_row(values: Sequence[str]) -> str:
            padded = (value.rjust(width) for value, width in zip(values, widths, strict=True))
            return "| " + " | ".join(padded) + " |"

        rule = render_row(["-" * width for width in widths])
        table = [render_row(names), rule, *(render_row(row) for row in cells)]
        return "\n".join([self.title, "", *table, "", *self.notes, describe_machine()])

    def save(self, path: Path) -> None:
        data = {
            "title": self.title,
            "machine": describe_machine(),
            self.rows_key: list(self.rows),
            **self.facts,
        }
        path.write_text(json.dumps(data, indent=2) + "\n")


def describe_machine() -> str:
    """Describe the machine and the versions of Python and torch in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{model}, {os.cpu_count()} cores{gpu}; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value at `percent` (0 to 100) of the sorted values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def _format_cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 10 else f"{cell:.1f}"
    return "" if cell is None else str(cell)

"""The report of a benchmark: printed, saved as JSON, drawn, and shown in evidence/benchmarks.md."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from continuo.bench.plot import Plot

Cell = str | int | float | None
ReportRow = Mapping[str, Cell]


@dataclass
class Report:
    """Figures of a benchmark. `rows` and `tables` are printed and in the JSON, `notes` too; `facts`
    are only in the JSON, each under its own key."""

    title: str
    rows: Sequence[ReportRow]
    tables: Mapping[str, Sequence[ReportRow]] = field(
        default_factory=dict[str, Sequence[ReportRow]]
    )
    """Further tables, by their headings."""
    rows_key: str = "rows"
    """Key of the list of rows in the JSON."""
    notes: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    plot: Plot | None = None

    def render(self) -> str:
        """Render the title, the tables and the notes as Markdown."""
        parts = [self.title, "", render_table(self.rows), ""]
        for heading, rows in self.tables.items():
            if not rows:
                continue
            parts += [heading, "", render_table(rows), ""]
        return "\n".join([*parts, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Return the value that is saved as JSON."""
        return {
            "title": self.title,
            self.rows_key: list(self.rows),
            "tables": {heading: list(rows) for heading, rows in self.tables.items()},
            "notes": list(self.notes),
            **self.facts,
            **({"plot": self.plot._asdict()} if self.plot is not None else {}),
        }


def render_table(rows: Sequence[ReportRow]) -> str:
    """Render rows as a Markdown table with aligned columns; numbers are to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_format_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, (name, *column))) for name, *column in zip(names, *cells, strict=True)]

    def render_row(values: Iterable[str]) -> str:
        padded = (value.rjust(width) for value, width in zip(values, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = render_row("-" * width for width in widths)
    return "\n".join([render_row(names), rule, *map(render_row, cells)])


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

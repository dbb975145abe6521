"""Record of the trials: docs/reliability.json, and the table of docs/reliability.md."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.faults.row import Row

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = ("engine", "realtime", "tests")
UNKNOWN = "unknown"
BEGIN, END = "<!-- made by make faults -->", "<!-- end -->"


class Done(msgspec.Struct):
    trials: int = 0
    """Number of trials, with the seeds 0, 1, 2, …"""
    failed: list[int] = []
    """Seeds of the failed trials."""
    commit: str = UNKNOWN
    """Commit of the last trial; with a `+` if the tree had uncommitted changes."""
    date: str = UNKNOWN
    """Date of the last trial."""


def commit() -> str:
    try:
        description = subprocess.run(
            ["git", "describe", "--always"], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    has_changes = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=ROOT
    ).returncode
    return description.stdout.strip() + ("+" if has_changes else "")


class Tally:
    def __init__(self, records: dict[str, Done], docs: Path = DOCS) -> None:
        self._records = records
        self._docs = docs
        self._commit = commit()

    @classmethod
    def read(cls, docs: Path = DOCS) -> "Tally":
        file = docs / "reliability.json"
        records = (
            msgspec.json.decode(file.read_bytes(), type=dict[str, Done]) if file.exists() else {}
        )
        return cls(records, docs)

    def of(self, row: Row) -> Done:
        return self._records.setdefault(row.id, Done())

    def add(self, row: Row, failed: int | None = None) -> None:
        record = self.of(row)
        record.trials += 1
        if failed is not None:
            record.failed.append(failed)
        record.commit, record.date = self._commit, datetime.now(UTC).date().isoformat()
        ordered = dict(sorted(self._records.items(), key=lambda entry: int(entry[0][1:])))
        data = msgspec.json.format(msgspec.json.encode(ordered), indent=1)
        (self._docs / "reliability.json").write_bytes(data + b"\n")

    def table(self, rows: dict[str, Row]) -> str:
        """Render the Markdown table."""
        lines = [
            "| | what is done | what must hold | done | of | failed | last on | commit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows.values():
            record = self._records.get(row.id, Done())
            failed = ", ".join(f"seed {seed}" for seed in record.failed) or "0"
            cells = (row.id, row.fault, row.passes, f"{record.trials:,}", f"{row.full:,}", failed)
            cells += (record.date, record.commit)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def page(self, rows: dict[str, Row]) -> str:
        """Render docs/reliability.md with the current table."""
        head, _, rest = (self._docs / "reliability.md").read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        return f"{head}{BEGIN}\n\n{self.table(rows)}\n\n{END}{tail}"

    def write_page(self, rows: dict[str, Row]) -> None:
        (self._docs / "reliability.md").write_text(self.page(rows))

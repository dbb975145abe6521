"""Record of the trials: evidence/faults.json, and the table of evidence/faults.md."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.faults.row import FaultRow

ROOT = Path(__file__).parents[2]
EVIDENCE_FOLDER = ROOT / "evidence"
CODE_FOLDERS = ("engine", "realtime", "tests")
UNKNOWN_COMMIT = "unknown"
TABLE_BEGIN, TABLE_END = "<!-- made by make faults -->", "<!-- end -->"


class TrialRecord(msgspec.Struct):
    trials: int = 0
    """Number of trials, with the seeds 0, 1, 2, …"""
    failed: list[int] = []
    """Seeds of the failed trials."""
    commit: str = UNKNOWN_COMMIT
    """Commit of the last trial; with a `+` if the tree had uncommitted changes."""
    date: str = UNKNOWN_COMMIT
    """Date of the last trial."""


def describe_commit() -> str:
    try:
        description = subprocess.run(
            ["git", "describe", "--always"], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT
    has_changes = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", *CODE_FOLDERS], cwd=ROOT
    ).returncode
    return description.stdout.strip() + ("+" if has_changes else "")


class Tally:
    def __init__(self, records: dict[str, TrialRecord], folder: Path = EVIDENCE_FOLDER) -> None:
        self._records = records
        self._folder = folder
        self._commit = describe_commit()

    @classmethod
    def read(cls, folder: Path = EVIDENCE_FOLDER) -> "Tally":
        file = folder / "faults.json"
        records = (
            msgspec.json.decode(file.read_bytes(), type=dict[str, TrialRecord])
            if file.exists()
            else {}
        )
        return cls(records, folder)

    def record_of(self, row: FaultRow) -> TrialRecord:
        return self._records.setdefault(row.id, TrialRecord())

    def add_trial(self, row: FaultRow, failed: int | None = None) -> None:
        record = self.record_of(row)
        record.trials += 1
        if failed is not None:
            record.failed.append(failed)
        record.commit, record.date = self._commit, datetime.now(UTC).date().isoformat()
        ordered = dict(sorted(self._records.items(), key=lambda entry: int(entry[0][1:])))
        data = msgspec.json.format(msgspec.json.encode(ordered), indent=1)
        (self._folder / "faults.json").write_bytes(data + b"\n")

    def render_table(self, rows: dict[str, FaultRow]) -> str:
        """Render the Markdown table."""
        lines = [
            "| | what is done | what must hold | done | of | failed | last on | commit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows.values():
            record = self._records.get(row.id, TrialRecord())
            failed = ", ".join(f"seed {seed}" for seed in record.failed) or "0"
            cells = (
                row.id,
                row.fault,
                row.expectation,
                f"{record.trials:,}",
                f"{row.full_trials:,}",
                failed,
            )
            cells += (record.date, record.commit)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def render_page(self, rows: dict[str, FaultRow]) -> str:
        """Render evidence/faults.md with the current table."""
        head, _, rest = (self._folder / "faults.md").read_text().partition(TABLE_BEGIN)
        _, _, tail = rest.partition(TABLE_END)
        return f"{head}{TABLE_BEGIN}\n\n{self.render_table(rows)}\n\n{TABLE_END}{tail}"

    def write_page(self, rows: dict[str, FaultRow]) -> None:
        (self._folder / "faults.md").write_text(self.render_page(rows))

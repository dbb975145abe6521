"""What was really done: docs/reliability.json, and the table of docs/reliability.md made of it."""

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
    """With the seeds 0, 1, 2, …"""
    failed: list[int] = []
    """Seeds of those in which something did not hold."""
    commit: str = UNKNOWN
    """What the last of them was done to; with a `+` if it had changes besides."""
    date: str = UNKNOWN
    """Of the last of them."""


def commit() -> str:
    try:
        git = subprocess.run(
            ["git", "describe", "--always"], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=ROOT).returncode
    return git.stdout.strip() + ("+" if changed else "")


class Tally:
    def __init__(self, done: dict[str, Done], docs: Path = DOCS) -> None:
        self._done = done
        self._docs = docs
        self._commit = commit()

    @classmethod
    def read(cls, docs: Path = DOCS) -> "Tally":
        file = docs / "reliability.json"
        known = (
            msgspec.json.decode(file.read_bytes(), type=dict[str, Done]) if file.exists() else {}
        )
        return cls(known, docs)

    def of(self, row: Row) -> Done:
        return self._done.setdefault(row.id, Done())

    def add(self, row: Row, failed: int | None = None) -> None:
        done = self.of(row)
        done.trials += 1
        if failed is not None:
            done.failed.append(failed)
        done.commit, done.date = self._commit, datetime.now(UTC).date().isoformat()
        ordered = dict(sorted(self._done.items(), key=lambda one: int(one[0][1:])))
        data = msgspec.json.format(msgspec.json.encode(ordered), indent=1)
        (self._docs / "reliability.json").write_bytes(data + b"\n")

    def table(self, rows: dict[str, Row]) -> str:
        """As Markdown."""
        lines = [
            "| | what is done | what must hold | done | of | failed | last on | commit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows.values():
            done = self._done.get(row.id, Done())
            failed = ", ".join(f"seed {seed}" for seed in done.failed) or "0"
            cells = (row.id, row.fault, row.passes, f"{done.trials:,}", f"{row.full:,}", failed)
            cells += (done.date, done.commit)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def page(self, rows: dict[str, Row]) -> str:
        """The page as it should be."""
        head, _, rest = (self._docs / "reliability.md").read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        return f"{head}{BEGIN}\n\n{self.table(rows)}\n\n{END}{tail}"

    def write_page(self, rows: dict[str, Row]) -> None:
        (self._docs / "reliability.md").write_text(self.page(rows))

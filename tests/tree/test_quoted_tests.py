"""Tests that the documentation names exist, by function or by file."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = {"mutations.md"}
"""Pages that record a run of long ago."""
NAME = re.compile(r"\btest_[a-z0-9_]+")


def test_every_test_that_the_documentation_names_exists() -> None:
    known = set[str]()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "node_modules" not in path.parts:
            known |= {path.stem, *re.findall(r"def (test_[a-z0-9_]+)", path.read_text("utf-8"))}
    missing = [
        f"{path.name}: {name}"
        for folder in ("docs", "evidence")
        for path in sorted((ROOT / folder).rglob("*.md"))
        if path.name not in RECORDS
        for name in NAME.findall(path.read_text("utf-8"))
        if name not in known
    ]
    assert missing == []

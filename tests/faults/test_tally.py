"""The table says what was done, and nothing else."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.faults.tally import DOCS, UNKNOWN, Tally, commit


def test_the_page_is_what_was_done() -> None:
    """`make faults` writes both."""
    assert (DOCS / "reliability.md").read_text() == Tally.read().page(ROWS)


def test_a_sitting_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "reliability.md").write_text((DOCS / "reliability.md").read_text())
    row = ROWS["F16"]
    Tally.read(tmp_path).add(row)
    Tally.read(tmp_path).add(row, failed=1)
    done = Tally.read(tmp_path).of(row)
    assert (done.trials, done.failed) == (2, [1])
    assert (done.commit, done.date) == (commit(), datetime.now(UTC).date().isoformat())
    tally = Tally.read(tmp_path)
    tally.write_page(ROWS)
    page = (tmp_path / "reliability.md").read_text()
    assert f"| applied once | 2 | 1,000 | seed 1 | {done.date} | {done.commit} |" in page
    assert page == tally.page(ROWS)


def test_it_says_what_it_was_done_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[\w.-]+\+?", commit())
    monkeypatch.setenv("PATH", "")
    assert commit() == UNKNOWN

"""Tests of the record of the trials and of the table of evidence/faults.md."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.faults.tally import EVIDENCE_FOLDER, ROOT, UNKNOWN_COMMIT, Tally, describe_commit


def test_page_shows_the_recorded_trials() -> None:
    """`make faults` writes the record and the page."""
    assert (EVIDENCE_FOLDER / "faults.md").read_text() == Tally.read().render_page(ROWS)


def test_documentation_says_that_no_trial_failed_if_none_did() -> None:
    tally = Tally.read()
    says = "No trial in the table failed." in (ROOT / "docs/reliability.md").read_text()
    assert says == (not any(tally.record_of(row).failed for row in ROWS.values()))


def test_tally_continues_an_interrupted_run(tmp_path: Path) -> None:
    (tmp_path / "faults.md").write_text((EVIDENCE_FOLDER / "faults.md").read_text())
    row = ROWS["F16"]
    Tally.read(tmp_path).add_trial(row)
    Tally.read(tmp_path).add_trial(row, failed=1)
    record = Tally.read(tmp_path).record_of(row)
    assert (record.trials, record.failed) == (2, [1])
    assert (record.commit, record.date) == (describe_commit(), datetime.now(UTC).date().isoformat())
    tally = Tally.read(tmp_path)
    tally.write_page(ROWS)
    page = (tmp_path / "faults.md").read_text()
    assert f"| applied once | 2 | 1,000 | seed 1 | {record.date} | {record.commit} |" in page
    assert page == tally.render_page(ROWS)


def test_commit_is_described_or_unknown_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[\w.-]+\+?", describe_commit())
    monkeypatch.setenv("PATH", "")
    assert describe_commit() == UNKNOWN_COMMIT

"""The report of a failed test: its name, its error, the logs of its servers, and the counts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILING = Path(__file__).with_name("failing.py")


@pytest.mark.process
def test_report_of_a_failed_test_ends_with_name_error_logs_and_counts() -> None:
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", str(FAILING))
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    _, failures = result.stdout.split("= FAILURES =", 1)
    assert re.search(r"-+ output of continuo\.realtime\.server\.cli gateway .* -+", failures)
    assert "a gateway needs engines" in failures, "the log of the server"
    *_, summary, counts = failures.rstrip().splitlines()
    name = "tests/tree/failing.py::test_that_fails_beside_a_server"
    assert summary == f"FAILED {name} - AssertionError: no answer"
    assert re.fullmatch(r"=+ 1 failed in .* =+", counts)

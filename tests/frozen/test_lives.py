"""Simulated lives have the frozen traces. All of them: `python -m tests.frozen --lives 10000`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frozen import lives

pytestmark = pytest.mark.timeout(240)
GROUPS = (20, 70)
"""Beyond the seeds that tests/simulation lives in each run."""


@pytest.mark.parametrize("group", GROUPS, ids=lives.seeds_of)
def test_a_group_of_lives_is_as_frozen(group: int) -> None:
    assert lives.digest(group) == lives.frozen()[group]


def test_all_lives_are_frozen() -> None:
    assert list(lives.frozen()) == list(range(lives.LIVES // lives.GROUP))


def test_a_trace_is_the_same_in_another_process() -> None:
    """Where hashes of strings, and addresses, are others."""
    traces = {
        subprocess.run(
            [sys.executable, "-m", "tests.frozen", "--trace", "7"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert traces != {""}

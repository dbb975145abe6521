"""Tests of simulated lives: their traces are as frozen.

`python -m tests.frozen --lives 10000` compares all of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frozen import lives

pytestmark = pytest.mark.timeout(240)
GROUPS = (20, 70)
"""Groups beyond the seeds that tests/simulation runs each time."""


@pytest.mark.parametrize("group", GROUPS, ids=lives.seeds_of)
def test_group_of_simulated_lives_is_as_frozen(group: int) -> None:
    assert lives.digest(group) == lives.frozen()[group]


def test_frozen_digests_cover_all_lives() -> None:
    assert list(lives.frozen()) == list(range(lives.LIVES // lives.GROUP))


def test_trace_of_a_seed_is_the_same_in_another_process() -> None:
    """Hashes of strings, and addresses, differ between the processes."""
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

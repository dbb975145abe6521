"""Tests of the fault rows: a few trials of each; `make faults` runs all of them."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.rows import ROWS

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("id", ROWS)
async def test_fault_row_passes_its_quick_trials(id: str, tmp_path: Path) -> None:
    row = ROWS[id]
    if (program := row.missing_requirement()) is not None:
        pytest.skip(f"{program} is not installed")
    async with row.environment(tmp_path) as environment:
        for seed in range(row.quick_trials):
            try:
                await row.trial(environment, Random(seed))
            except Exception as error:
                raise AssertionError(f"make faults ROW={id} ARGS='--seed {seed}'") from error

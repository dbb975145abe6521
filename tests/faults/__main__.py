"""python -m tests.faults [ROW] [--trials N] [--minutes M] [--seed S]: run the trials of each row.

Every trial is recorded in evidence/faults.json, from which the table of evidence/faults.md is
rendered. A run may therefore be interrupted at any time; the next run continues with the first
missing trial. After a failed trial its seed is recorded and the run continues with the next row.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tests.faults.row import FaultRow
from tests.faults.rows import ROWS
from tests.faults.tally import Tally


async def run_trials(row: FaultRow, tally: Tally, trials: int, until_s: float) -> bool:
    """Run the missing trials of `row` until `until_s`. Returns False after a failed trial."""
    record = tally.record_of(row)
    if (program := row.missing_requirement()) is not None:
        print(f"{row.id}: skipped, {program} is not installed", flush=True)
        return True
    with tempfile.TemporaryDirectory() as folder:
        async with row.environment(Path(folder)) as environment:
            while record.trials < trials and time.monotonic() < until_s:
                seed = record.trials
                try:
                    await row.trial(environment, Random(seed))
                except Exception:
                    traceback.print_exc()
                    print(f"{row.id}: seed {seed} failed", flush=True)
                    tally.add_trial(row, failed=seed)
                    return False
                tally.add_trial(row)
    print(f"{row.id}: {record.trials:,} of {row.full_trials:,}", flush=True)
    return True


async def run_single_trial(row: FaultRow, seed: int) -> None:
    """Run the trial with this seed without recording it."""
    with tempfile.TemporaryDirectory() as folder:
        async with row.environment(Path(folder)) as environment:
            await row.trial(environment, Random(seed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "row", nargs="?", choices=[*ROWS], metavar="ROW", help="e.g. F3; default: all"
    )
    parser.add_argument("--trials", type=int, metavar="N", help="of each row (default: the row's)")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="per row")
    parser.add_argument("--seed", type=int, metavar="S", help="run this trial only, unrecorded")
    options = parser.parse_args()
    rows = [ROWS[options.row]] if options.row else list(ROWS.values())
    if options.seed is not None:
        if not options.row:
            parser.error("--seed needs a ROW")
        asyncio.run(run_single_trial(rows[0], options.seed))
        return 0
    tally, passed = Tally.read(), True
    for row in rows:
        until_s = time.monotonic() + options.minutes * 60
        passed &= asyncio.run(run_trials(row, tally, options.trials or row.full_trials, until_s))
        tally.write_page(ROWS)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

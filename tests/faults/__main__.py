"""python -m tests.faults [ROW] [--trials N] [--minutes M] [--seed S]: does each fault until it was
done as often as makes it proven.

What was done is written to docs/reliability.json after every trial, and the table of
docs/reliability.md is made from it, so a sitting may be ended at any time and another goes on where
it stopped. A trial that fails is counted, its seed is named, and the sitting goes on with the next
row.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tests.faults.row import Row
from tests.faults.rows import ROWS
from tests.faults.tally import Tally


async def sit(row: Row, tally: Tally, trials: int, until_s: float) -> bool:
    """False: something did not hold."""
    done = tally.of(row)
    if (program := row.lacks()) is not None:
        print(f"{row.id}: skipped, {program} is not installed", flush=True)
        return True
    with tempfile.TemporaryDirectory() as folder:
        async with row.world(Path(folder)) as world:
            while done.trials < trials and time.monotonic() < until_s:
                seed = done.trials
                try:
                    await row.trial(world, Random(seed))
                except Exception:
                    traceback.print_exc()
                    print(f"{row.id}: seed {seed} failed", flush=True)
                    tally.add(row, failed=seed)
                    return False
                tally.add(row)
    print(f"{row.id}: {done.trials:,} of {row.full:,}", flush=True)
    return True


async def again(row: Row, seed: int) -> None:
    """One trial, that is counted nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        async with row.world(Path(folder)) as world:
            await row.trial(world, Random(seed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("row", nargs="?", choices=[*ROWS], metavar="ROW", help="F3; default: all")
    parser.add_argument("--trials", type=int, metavar="N", help="of each row (default: its own)")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="a row")
    parser.add_argument("--seed", type=int, metavar="S", help="this trial alone, not counted")
    options = parser.parse_args()
    rows = [ROWS[options.row]] if options.row else list(ROWS.values())
    if options.seed is not None:
        if not options.row:
            parser.error("--seed needs a ROW")
        asyncio.run(again(rows[0], options.seed))
        return 0
    tally, held = Tally.read(), True
    for row in rows:
        until_s = time.monotonic() + options.minutes * 60
        held &= asyncio.run(sit(row, tally, options.trials or row.full, until_s))
        tally.write_page(ROWS)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

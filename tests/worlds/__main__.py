"""python -m tests.worlds [--minutes M] [--seed S] [--worlds N] [--models]: live random histories in
crowded worlds (tests/support/worlds.py), one from each seed, until the time is over or one fails.

A failure names its seed; `--seed S --worlds 1` repeats it. With --models, small models compute the
histories, and transformers one fresh prefill of each output (tests/support/model_history.py).
"""

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable

from tests.support.random_history import RandomHistory, crowded_history

REPORT_INTERVAL_S = 10.0


def live(
    first: int,
    worlds: int | None,
    minutes: float,
    make_history: Callable[[int], RandomHistory] = crowded_history,
) -> int | None:
    """Live the worlds from the seed `first` on, at most `worlds` of them (None: any number) and for
    at most `minutes`. Returns the seed of the first one that fails, or None."""
    began_s = reported_s = time.monotonic()
    seed, turns, ids, retractions = first, 0, 0, 0
    while worlds is None or seed < first + worlds:
        history = make_history(seed)
        try:
            history.run()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print(f"{history.world}\nSeed {seed} failed. To repeat it: --seed {seed} --worlds 1")
            return seed
        seed += 1
        turns += len(history.prompts)
        ids += history.compared
        retractions += history.core.scheduler.admission.retractions
        now_s = time.monotonic()
        is_over = now_s - began_s >= 60 * minutes
        if is_over or now_s - reported_s >= REPORT_INTERVAL_S or seed == first + (worlds or 0):
            reported_s = now_s
            print(
                f"{now_s - began_s:6.0f} s  {seed - first:,} worlds, {turns:,} turns, "
                f"{ids:,} ids compared, {retractions:,} retractions, next seed {seed}",
                flush=True,
            )
        if is_over:
            break
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first world")
    parser.add_argument("--worlds", type=int, metavar="N", help="at most so many")
    parser.add_argument("--models", action="store_true", help="on small models")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the steps that fail on purpose
    make_history: Callable[[int], RandomHistory] = crowded_history
    if options.models:
        from tests.support.model_history import model_history

        make_history = model_history
    return int(live(options.seed, options.worlds, options.minutes, make_history) is not None)


if __name__ == "__main__":
    sys.exit(main())

"""Tests of simulated lives from seeds. `make faults ROW=F39` runs a failing seed again."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.realtime.conftest import chat_folder
from tests.simulation.world import simulate

SEEDS = 300
SEEDS_PER_TEST = 10
REGRESSION_SEEDS = (
    642,
    783,
    821,
    1590,
    1689,
    1934,
    2198,
    2769,
    6493,
    7237,
    8386,
    9867,
    10138,
    11467,
    11908,
    15981,
    21428,
)
"""Regression seeds, beyond the first SEEDS, of bugs that have been fixed:

- A withdrawn request was retried at another gateway and answered as if it had been executed.
- Of the responses refused while the store was unavailable, one was left in the store.
- After a resume, items after a response were sent before the response.
- The end of a turn, late on a lost link, was taken for the end of the retried turn.
- An end sent while the store was unavailable was sent again by a gateway that had no record of it,
  or differed at that gateway.
- A late write undid later writes of the same gateway.
- The output of a response was lost while another response was written.
- The replacement for a response's placeholder, lost in a failed write, was deleted before the next
  write: the placeholder remained in the store.
- A client without a session id disconnected without notice: the simulation had no pings.
- A turn dropped by one gateway was requested by another, and reported as ended without its output.
- After the store had lost a change of owner, earlier requests were executed again.
- A write without a fence was refused after its events had been sent.
- To a client that had missed an item or the first part of it, later items were sent at once.
- A store that had lost a request got its effects again, but not its idempotency key.
- An item was sent as if it followed the item before a response, although the client had received
  an item of the response from another gateway."""
FAILOVER_REGRESSION_SEEDS = (332, 401, 853, 1304, 2815)
"""Regression seeds in which a failover lost, in this order: a deletion; an end, after which the
response ended otherwise; a truncation; a fence, with a log that was not too short; a deletion and
the end of a response."""

IGNORE_NEVER_AWAITED = "ignore:coroutine .* was never awaited:RuntimeWarning"
"""Killed processes leave coroutines that were never awaited."""

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings(IGNORE_NEVER_AWAITED)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_folder(tmp_path_factory.mktemp("chatty")))


@pytest.mark.parametrize(
    "seeds",
    [
        *(range(n, n + SEEDS_PER_TEST) for n in range(0, SEEDS, SEEDS_PER_TEST)),
        REGRESSION_SEEDS,
        FAILOVER_REGRESSION_SEEDS,
    ],
    ids=str,
)
def test_simulated_life_keeps_all_promises(folder: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            simulate(Random(seed), folder)
        except AssertionError as error:
            command = f"make faults ROW=F39 ARGS='--seed {seed}'"
            raise AssertionError(command) from error


def test_same_seed_gives_the_same_trace(folder: str) -> None:
    first, other, repeated = (simulate(Random(seed), folder) for seed in (3, 4, 3))
    assert first.trace == repeated.trace != other.trace
    assert first.event_count == repeated.event_count > 100


PRINT_TRACES = """
import sys
from random import Random
from tests.simulation.world import simulate
print(*(simulate(Random(seed), sys.argv[1]).trace for seed in range(5)))
"""


def test_same_seed_gives_the_same_trace_in_another_process(folder: str) -> None:
    """Another process has other hashes of strings and other addresses."""
    root = str(Path(__file__).parents[2])
    traces = {
        subprocess.run(
            [sys.executable, "-c", PRINT_TRACES, folder],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1

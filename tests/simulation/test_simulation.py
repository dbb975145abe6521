"""Small worlds, each from a seed. One that fails is lived again by `make faults ROW=F39`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.realtime.conftest import chat_folder
from tests.simulation.world import simulate

SEEDS = 200
TOGETHER = 10
FAILED_ONCE = (
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
    10138,
    11467,
    11908,
    15981,
    21428,
)
"""Beyond those. A taken-back request was asked again elsewhere, and answered as if it were done. Of
answers that were refused while the store was away one was left in it. Who came back was told what
stood behind an answer before the answer. The end of a turn that came late over a lost link was
taken for that of the same turn asked for again. An end that was told while the store was away was
told again by a gateway that had never heard of it, or was another one there. A write that came
late, behind others of the same gateway, undid them. What an answer showed while one beside it was
written was not known any more. What a write that was lost would have put in place of an answer's
was deleted before it was written again: the place stayed. A client that nobody had told of its
session was gone, and the network said so to nobody: the simulation had no pings. A turn that one
gateway had dropped was asked for by another, and told to be over, without what it had said. A store
had lost a change of hands, and requests from before were done again. A write behind which no fence
was given was refused, and what it told stayed told. Who had heard nothing of an item, or a part of
how it begins, was told what stands behind it at once. A store that had lost a request was given
again what came of it, but not that it was asked."""
FAILED_OVER = (332, 401, 853, 1304, 2815)
"""Of those in which the store has lost something. A deletion; an end, and the answer ended
otherwise; a cut; a fence, where the log was not too short; a deletion and the end of the answer."""

KILLED = "ignore:coroutine .* was never awaited:RuntimeWarning"
"""A process that is killed leaves what it was about to do."""

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings(KILLED)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_folder(tmp_path_factory.mktemp("chatty")))


@pytest.mark.parametrize(
    "seeds",
    [*(range(n, n + TOGETHER) for n in range(0, SEEDS, TOGETHER)), FAILED_ONCE, FAILED_OVER],
    ids=str,
)
def test_whatever_befalls_it(folder: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            simulate(Random(seed), folder)
        except AssertionError as error:
            again = f"make faults ROW=F39 ARGS='--seed {seed}'"
            raise AssertionError(again) from error


def test_a_seed_lives_the_same_life_again(folder: str) -> None:
    first, other, again = (simulate(Random(seed), folder) for seed in (3, 4, 3))
    assert first.trace == again.trace != other.trace
    assert first.events == again.events > 100


TWICE = """
import sys
from random import Random
from tests.simulation.world import simulate
print(*(simulate(Random(seed), sys.argv[1]).trace for seed in range(5)))
"""


def test_also_in_another_process(folder: str) -> None:
    """Where hashes of strings, and addresses, are others."""
    root = str(Path(__file__).parents[2])
    traces = {
        subprocess.run(
            [sys.executable, "-c", TWICE, folder],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1

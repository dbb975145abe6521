"""Tests of the engine core in crowded worlds. `make worlds` lives as many as there is time for."""

import random

import pytest

from tests.engine.core.test_misplaced_rows import DoublingScheduler
from tests.support.random_history import RandomHistory, crowded_history
from tests.support.worlds import crowded_world
from tests.worlds.__main__ import live

WORLDS = 40
REGRESSION_SEEDS = (43, 54, 73, 98, 105, 142, 159, 168, 212, 371, 410, 100_529, 1_002_354)
"""Seeds, beyond the first WORLDS, of bugs that have been fixed:

43, 105   the oldest turn never had a row: a turn of its group, for which there was no page, was
          before it, and the group could have no other row
100,529   two turns were first in a step by turns, and took each other's pages; the oldest one, a
          decode for which no page was left, never had a row
1,002,354 a session was forked at a mark that it lost to make room for the fork's copy of a page
others    a turn that was retracted while a step was planned had two rows in it, and positions
          between them had no KV: ids were wrong, silently in 73 and 98
"""


@pytest.mark.parametrize("seed", [*range(WORLDS), *REGRESSION_SEEDS])
def test_output_in_a_crowded_world_equals_one_prefill(seed: int) -> None:
    crowded_history(seed).run()


def test_failing_world_is_named_by_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    class FaultyFromTheThirdStep(DoublingScheduler):
        faulty_step = 3

    def make_history(seed: int) -> RandomHistory:
        source = random.Random(seed)
        world = crowded_world(source)
        return RandomHistory(world._replace(scheduler=FaultyFromTheThirdStep), source, seed)

    seed = live(3, None, 1.0, make_history)
    assert seed is not None
    assert f"--seed {seed} --worlds 1" in capsys.readouterr().out

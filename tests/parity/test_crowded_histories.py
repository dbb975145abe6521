"""Parity of random histories in crowded worlds, on a small model of each kind of layer.

The histories have no clock, so that a seed repeats them. `python -m tests.worlds --models` lives as
many as there is time for.
"""

import pytest

from tests.support.model_history import MODELS, model_history

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MODELS)
def test_output_in_a_crowded_world_equals_one_prefill(name: str, seed: int) -> None:
    history = model_history(seed, name)
    history.run()
    assert history.compared > 0
    assert history.core.scheduler.admission.retractions > 0

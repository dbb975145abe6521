"""Tests of the rows of a step and of the step-time model: fits, predictions.

No clock is read: timings are computed from known coefficients.
"""

import random

import pytest

from continuo.engine.core.cache import PageLease
from continuo.engine.core.schedule.packing import StepRows
from continuo.engine.core.schedule.step import ScheduledRow, StepLoad
from continuo.engine.core.schedule.step_time import (
    OBSERVATIONS_MIN,
    OUTLIER_RATIO_MAX,
    StepTimeModel,
)
from continuo.engine.core.sequence import Sequence
from continuo.engine.wire.token_log import TokenLog

TRUE_COEFFICIENTS = (0.003, 0.0002, 0.00005, 2e-9)
"""Seconds per step, per row, per token, and per token and token of its context."""


def cost(load: StepLoad) -> float:
    a, b, c, d = TRUE_COEFFICIENTS
    return a + b * load.rows + c * load.tokens + d * load.attention


def loads(count: int, seed: int = 1) -> list[StepLoad]:
    source = random.Random(seed)
    made: list[StepLoad] = []
    for _ in range(count):
        load = StepLoad()
        for _ in range(source.randint(1, 12)):
            load = load.with_row(source.randint(0, 4_000), source.choice([1, 1, 1, 8, 64]))
        made.append(load)
    return made


def fitted_model(count: int = 200, noise: float = 0.0, seed: int = 1) -> StepTimeModel:
    time, source = StepTimeModel(), random.Random(seed)
    for load in loads(count, seed):
        time.observe(load, cost(load) * (1 + noise * source.uniform(-1, 1)))
    return time


# ---- StepRows ------------------------------------------------------------------------------


def row(name: str, start: int, tokens: int) -> ScheduledRow:
    lease = PageLease("")
    lease.committed, lease.reserved = start, tokens
    sequence = Sequence(name, lease, TokenLog(10_000, streaming=True), None, 0.0)
    return ScheduledRow(sequence, start, tokens, None)


def test_rows_add_up_to_the_load_of_the_step() -> None:
    rows, load = StepRows(1, 100, 3), StepLoad()
    for start, tokens in ((0, 40), (900, 1), (7, 20)):
        assert rows
        rows.add(row("s", start, tokens))
        load = load.with_row(start, tokens)
    assert rows.load == load == StepLoad(3, 61, 40 * 20 + 900 + 7 * 20 + 200)
    assert (rows.remaining_tokens, rows.remaining_rows) == (39, 0)
    assert rows.served == {"": 60.0}, "decodes are not prefill"
    assert not rows, "no row remains"
    assert StepRows(1, 1, 1)
    assert not StepRows(1, 0, 1)


def test_sequence_cannot_have_two_rows() -> None:
    rows, first = StepRows(1, 100, 3), row("s", 0, 40)
    rows.add(first)
    with pytest.raises(AssertionError, match="one row"):
        rows.add(ScheduledRow(first.sequence, 40, 1, None))
    assert rows.plan().rows == [first]


# ---- StepTimeModel -------------------------------------------------------------------------


def test_step_time_model_learns_the_cost_of_a_step() -> None:
    time = fitted_model()
    assert time.is_fitted
    for load in loads(50, seed=2):
        assert time.predict(load) == pytest.approx(cost(load), rel=0.02)


def test_step_time_model_needs_a_minimum_of_observations() -> None:
    time = StepTimeModel()
    for load in loads(OBSERVATIONS_MIN - 1):
        time.observe(load, cost(load))
        assert not time.is_fitted
    time.observe(StepLoad(1, 1, 1), 0.01)
    assert time.is_fitted


def test_first_predictions_are_those_of_the_slowest_token() -> None:
    time = StepTimeModel()
    assert time.predict(StepLoad(2, 40, 400)) == 0.0
    time.observe(StepLoad(1, 20, 200), 0.02)
    time.observe(StepLoad(1, 20, 400), 0.06)
    time.observe(StepLoad(1, 20, 600), 0.04)
    assert time.predict(StepLoad(2, 40, 400)) == pytest.approx(0.12)


def test_step_time_model_averages_out_noise() -> None:
    time = fitted_model(400, noise=0.3)
    errors = [time.predict(load) / cost(load) - 1 for load in loads(100, seed=2)]
    assert abs(sum(errors) / len(errors)) < 0.1


def test_outlier_has_bounded_influence_on_predictions() -> None:
    """A step delayed by other work on the machine is clipped before it is counted."""
    time = fitted_model()
    before = [time.predict(load) for load in loads(20, seed=2)]
    for load in loads(32, seed=4)[:1]:
        time.observe(load, 1000 * cost(load))
    for load in loads(64, seed=5):
        time.observe(load, cost(load))
    for load, earlier in zip(loads(20, seed=2), before, strict=True):
        assert time.predict(load) < (1 + OUTLIER_RATIO_MAX) * earlier
        assert time.predict(load) == pytest.approx(cost(load), rel=0.5)


def test_step_time_model_adapts_to_a_slower_machine() -> None:
    time = fitted_model()
    for load in loads(400, seed=6):
        time.observe(load, 3 * cost(load))
    for load in loads(20, seed=2):
        assert time.predict(load) == pytest.approx(3 * cost(load), rel=0.1)


def test_predictions_are_non_negative_and_monotonic_in_the_load() -> None:
    """Negative coefficients are clipped to zero, even if timings are random."""
    time, source = StepTimeModel(), random.Random(1)
    for load in loads(200):
        time.observe(load, source.uniform(0, 0.01))
    load = StepLoad()
    for _ in range(20):
        more = load.with_row(source.randint(0, 4000), source.randint(1, 64))
        assert 0 <= time.predict(load) <= time.predict(more)
        load = more


def test_identical_steps_can_be_fitted() -> None:
    """Rows and tokens are collinear then; the same step is still predicted."""
    time = StepTimeModel()
    for _ in range(100):
        time.observe(StepLoad(4, 4, 400), 0.01)
    assert time.predict(StepLoad(4, 4, 400)) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("start", [0, 1_000, 40_000])
@pytest.mark.parametrize("seconds", [0.004, 0.02, 0.2])
def test_tokens_within_returns_the_most_that_fits(start: int, seconds: float) -> None:
    time, load = fitted_model(), StepLoad().with_row(500, 1).with_row(700, 1)
    tokens = time.tokens_within(seconds, load, start, 5_000)
    assert 0 <= tokens <= 5_000
    if tokens:
        assert time.predict(load.with_row(start, tokens)) <= seconds
    if tokens < 5_000:
        assert time.predict(load.with_row(start, tokens + 1)) > seconds


def test_long_context_leaves_room_for_fewer_tokens() -> None:
    """A query over 40,000 tokens of context costs more than one token."""
    time = fitted_model()
    counts = [time.tokens_within(0.05, StepLoad(), start, 5_000) for start in (0, 10_000, 40_000)]
    assert counts[0] > counts[1] > counts[2] > 0

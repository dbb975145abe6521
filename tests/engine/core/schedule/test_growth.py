"""Tests of the estimate of outputs and of the peak of pages."""

import random

from continuo.engine.core.schedule.growth import (
    OUTPUT_TOKENS_AT_FIRST,
    OUTPUTS_REMEMBERED,
    Growth,
    OutputEstimate,
    compute_peak_tokens,
)


def simulate_peak(growths: list[Growth]) -> int:
    """Return the most tokens held, one id of every turn at a time."""
    peak = 0
    for drawn in range(max((growth.remaining_tokens for growth in growths), default=0) + 1):
        alive = [growth for growth in growths if growth.remaining_tokens >= drawn]
        peak = max(peak, sum(growth.held_tokens + drawn for growth in alive))
    return peak


def test_peak_is_that_of_a_simulation() -> None:
    source = random.Random(1)
    for _ in range(200):
        growths = [
            Growth(source.randint(0, 60), source.randint(0, 90))
            for _ in range(source.randint(0, 7))
        ]
        assert compute_peak_tokens(growths) == simulate_peak(growths)


def test_estimate_before_any_turn_has_ended() -> None:
    estimate = OutputEstimate()
    assert estimate.remaining_tokens(0, 10_000) == OUTPUT_TOKENS_AT_FIRST
    assert estimate.remaining_tokens(0, 30) == 30
    assert estimate.remaining_tokens(400, 10_000) == 400


def test_estimate_is_the_mean_of_longer_outputs() -> None:
    estimate = OutputEstimate()
    for output in (10, 20, 100):
        estimate.observe(output)
    assert estimate.remaining_tokens(0, 10_000) == 44
    assert estimate.remaining_tokens(15, 10_000) == 45
    assert estimate.remaining_tokens(50, 60) == 10
    assert estimate.remaining_tokens(150, 10_000) == 151


def test_estimate_forgets_old_outputs() -> None:
    estimate = OutputEstimate()
    for _ in range(OUTPUTS_REMEMBERED):
        estimate.observe(1_000)
    assert estimate.remaining_tokens(0, 10_000) == 1_000
    for _ in range(OUTPUTS_REMEMBERED):
        estimate.observe(7)
    assert estimate.remaining_tokens(0, 10_000) == 7

"""Tests of the sampler against a slow reference, alone and beside other rows."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from continuo.engine.batch import RowResult, SampleParams
from continuo.engine.device import sampling
from continuo.engine.device.sampling import draw
from continuo.engine.sampling import Sampling
from tests.support.sampling_reference import Only, penalised, reference_ids, tables

pytestmark = pytest.mark.torch


def ids_of(logits: torch.Tensor, samples: list[SampleParams]) -> list[RowResult]:
    return draw(logits, samples).to_host().to_row_results(samples)


@pytest.mark.parametrize("partial_size", [sampling.PARTIAL_SORT_SIZE, 4, 1])
@settings(max_examples=150, deadline=None)
@given(table=tables())
def test_draw_equals_the_reference_in_any_batch(
    partial_size: int, table: tuple[list[list[float]], list[SampleParams]]
) -> None:
    """A partial sort of the likeliest candidates does not change the result."""
    rows, samples = table
    whole, sampling.PARTIAL_SORT_SIZE = sampling.PARTIAL_SORT_SIZE, partial_size
    try:
        together = ids_of(torch.tensor(rows), samples)
        for row, sample, drawn in zip(rows, samples, together, strict=True):
            assert drawn.id in reference_ids(row, sample)
            assert ids_of(torch.tensor([row]), [sample]) == [drawn]
    finally:
        sampling.PARTIAL_SORT_SIZE = whole


@settings(max_examples=50, deadline=None)
@given(table=tables())
def test_logprobs_are_of_the_penalised_logits_before_temperature(
    table: tuple[list[list[float]], list[SampleParams]],
) -> None:
    rows, samples = table
    for row, sample, drawn in zip(rows, samples, ids_of(torch.tensor(rows), samples), strict=True):
        count = sample.sampling.logprobs
        if count is None:
            assert drawn.logprobs is None
            continue
        scores = penalised(row, sample).astype(np.float64)
        expected = scores - scores.max() - math.log(np.exp(scores - scores.max()).sum())
        assert drawn.logprobs is not None
        assert drawn.logprobs.drawn == pytest.approx(expected[drawn.id], abs=1e-4)
        assert len(drawn.logprobs.top) == min(count, len(row))
        best = sorted(expected, reverse=True)[:count]
        assert [value for _, value in drawn.logprobs.top] == pytest.approx(best, abs=1e-4)
        for id, value in drawn.logprobs.top:
            assert value == pytest.approx(expected[id], abs=1e-4)


@pytest.mark.parametrize(
    "sample", [SampleParams(), SampleParams(Sampling(temperature=0.8, top_p=0.9), uniform=0.5)]
)
def test_empty_mask_fails_only_its_own_row(sample: SampleParams) -> None:
    logits = torch.randn(2, 900, generator=torch.Generator().manual_seed(0))
    masked = msgspec.structs.replace(sample, mask=Only(set(), 900))
    sound, broken = ids_of(logits, [sample, masked])
    assert sound == ids_of(logits[:1], [sample])[0]
    assert broken.failure is not None
    assert "grammar" in broken.failure


def test_rounding_never_draws_an_id_outside_the_mask() -> None:
    """`uniform` is just below 1, and the sum of the probabilities may be less."""
    logits = torch.randn(200, 900, generator=torch.Generator().manual_seed(0))
    mask = Only(set(range(3, 700, 2)), 900)
    sample = SampleParams(Sampling(temperature=1.0), uniform=1 - 2**-53, mask=mask)
    assert all(drawn.id in range(3, 700, 2) for drawn in ids_of(logits, [sample] * 200))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sample", [SampleParams(), SampleParams(Sampling(temperature=0.8, top_p=0.9), uniform=0.5)]
)
def test_non_finite_logits_fail_only_their_own_row(bad: float, sample: SampleParams) -> None:
    logits = torch.randn(3, 900, generator=torch.Generator().manual_seed(0))
    sound = ids_of(logits, [sample] * 3)
    logits[1, 17] = bad
    broken = ids_of(logits, [sample] * 3)
    assert [drawn.failure is None for drawn in broken] == [True, False, True]
    assert [broken[0].id, broken[2].id] == [sound[0].id, sound[2].id]
    assert 0 <= broken[1].id < 900


def test_greedy_ties_draw_the_lowest_id_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.zeros(2, 300, dtype=dtype)
        logits[0, [40, 200]] = 3.0
        assert [drawn.id for drawn in ids_of(logits, [SampleParams()] * 2)] == [40, 0]
        warm = [SampleParams(Sampling(temperature=1e-4, logprobs=0), uniform=0.3)] * 2
        assert ids_of(logits, warm)[0].id == 40


def test_uniform_numbers_draw_each_id_with_its_probability() -> None:
    """Over a grid of uniform numbers, each id is drawn in proportion to its probability."""
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    probs = logits.softmax(-1)[0].tolist()
    grid = [(step + 0.5) / 1000 for step in range(1000)]
    samples = [SampleParams(Sampling(temperature=1.0), uniform=uniform) for uniform in grid]
    ids = [drawn.id for drawn in ids_of(logits.expand(1000, -1), samples)]
    ranks = [[1, 2, 0, 3].index(id) for id in ids]
    assert ranks == sorted(ranks)
    for id, prob in enumerate(probs):
        assert ids.count(id) == pytest.approx(1000 * prob, abs=1)


def test_flat_distribution_of_a_large_vocabulary_is_exact() -> None:
    """The whole vocabulary is sorted if the likeliest candidates hold too little mass."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 5000, generator=generator) * 0.01
    uniforms = (0.0, 0.4, 0.9, 0.999999)
    samples = [SampleParams(Sampling(temperature=1.0), uniform=uniform) for uniform in uniforms]
    ids = [drawn.id for drawn in ids_of(logits, samples)]
    for row, sample, id in zip(logits.tolist(), samples, ids, strict=True):
        assert id in reference_ids(row, sample)


def test_min_p_cut_beyond_the_partial_sort_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "PARTIAL_SORT_SIZE", 3)
    logits = [0.0] * 3 + [-0.1] + [-2.0] * 40
    for uniform in (0.1, 0.3, 0.35, 0.6, 0.9):
        sample = SampleParams(Sampling(temperature=1.0, min_p=0.5), uniform=uniform)
        [drawn] = ids_of(torch.tensor([logits]), [sample])
        assert drawn.id in reference_ids(logits, sample)


def test_ties_at_the_border_of_the_partial_sort_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "PARTIAL_SORT_SIZE", 4)
    logits = torch.zeros(50, 50)
    samples = [SampleParams(Sampling(temperature=1.0), uniform=(id + 0.5) / 50) for id in range(50)]
    assert [drawn.id for drawn in ids_of(logits, samples)] == list(range(50))

"""Tests of the sampler against a slow reference, alone and beside other rows."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo.engine.batch import PenalizedIds, RowResult, SampleParams, TokenMask
from continuo.engine.device import sampling
from continuo.engine.device.sampling import draw
from continuo.engine.sampling import Sampling

pytestmark = pytest.mark.torch


def penalised(logits: list[float], sample: SampleParams) -> np.ndarray:
    """fp32 logits after penalties and bias, one id at a time."""
    out = np.array(logits, dtype=np.float32)
    params, penalized = sample.sampling, sample.penalized
    if penalized is not None:
        factor = np.float32(params.repetition_penalty)
        for id in penalized.seen_ids:
            out[id] = out[id] / factor if out[id] > 0 else out[id] * factor
        for id, count in penalized.output_counts.items():
            out[id] -= np.float32(params.presence_penalty + params.frequency_penalty * count)
    for id, bias in params.logit_bias.items():
        out[id] += np.float32(bias)
    return out


class Only(TokenMask):
    """Mask that allows only `ids`."""

    def __init__(self, ids: set[int], vocab: int) -> None:
        self.ids = ids
        self._bytes = np.packbits([id in ids for id in range(vocab)], bitorder="little").tobytes()

    def compute_bitmask(self) -> bytes:
        return self._bytes + b"\xff\xff"  # as from a tokenizer larger than the model


def reference_ids(logits: list[float], sample: SampleParams) -> set[int]:
    """Return the ids that may be drawn: one, or two if `uniform` is close to their border.

    The steps follow the documented order, in a loop over the ids by probability.
    """
    scores = penalised(logits, sample).astype(np.float64)
    ids = sample.mask.ids if isinstance(sample.mask, Only) else range(len(scores))
    order = sorted(ids, key=lambda id: (-scores[id], id))
    params = sample.sampling
    if params.temperature == 0:
        return {order[0]}
    weights = [math.exp((scores[id] - scores[order[0]]) / params.temperature) for id in order]
    whole = sum(weights)
    probs = [weight / whole for weight in weights]
    allowed: set[int] = set()
    for slack in (-1e-6, 0.0, 1e-6):
        kept = len(order) if params.top_k == 0 else min(params.top_k, len(order))
        mass = sum(probs[:kept])
        if params.top_p < 1:
            reached = 0.0
            for index in range(kept):
                reached += probs[index]
                if reached >= params.top_p * mass + slack:
                    kept = index + 1
                    break
        if params.min_p > 0:
            kept = sum(prob >= (params.min_p + slack) * probs[0] for prob in probs[:kept]) or 1
        target = sample.uniform * sum(probs[:kept]) + slack
        reached = 0.0
        for index in range(kept):
            reached += probs[index]
            if reached > target or index == kept - 1:
                allowed.add(order[index])
                break
    return allowed


def ids_of(logits: torch.Tensor, samples: list[SampleParams]) -> list[RowResult]:
    return draw(logits, samples).to_host().to_row_results(samples)


@st.composite
def sample_params(draw_value: st.DrawFn, vocab: int) -> SampleParams:
    some_ids = st.integers(0, vocab - 1)
    penalized = None
    if draw_value(st.booleans()):
        penalized = PenalizedIds(
            seen_ids=draw_value(st.sets(some_ids, max_size=5)),
            output_counts=draw_value(st.dictionaries(some_ids, st.integers(1, 4), max_size=4)),
        )
    return SampleParams(
        Sampling(
            temperature=draw_value(st.sampled_from([0.0, 0.1, 0.7, 1.0, 3.0])),
            top_k=draw_value(st.sampled_from([0, 1, 3, 10, vocab, 10 * vocab])),
            top_p=draw_value(st.sampled_from([1.0, 0.9, 0.5, 0.01])),
            min_p=draw_value(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
            repetition_penalty=draw_value(st.sampled_from([1.0, 1.3, 0.8])),
            presence_penalty=draw_value(st.sampled_from([0.0, 0.5, -0.5])),
            frequency_penalty=draw_value(st.sampled_from([0.0, 0.25])),
            logprobs=draw_value(st.sampled_from([None, 0, 3])),
            logit_bias=draw_value(
                st.dictionaries(some_ids, st.floats(-5, 5, width=32), max_size=3)
            ),
        ),
        uniform=draw_value(st.floats(0, 1, exclude_max=True)),
        penalized=penalized,
        mask=Only(draw_value(st.sets(some_ids, min_size=1)), vocab)
        if draw_value(st.booleans())
        else None,
    )


@st.composite
def tables(draw_value: st.DrawFn) -> tuple[list[list[float]], list[SampleParams]]:
    """Draw logits [S][vocab], with ties, and S sample parameters."""
    vocab = draw_value(st.sampled_from([2, 7, 40]))
    level = st.sampled_from([-3.0, 0.0, 0.25, 1.5, 4.0]) | st.floats(-10, 10, width=32)
    rows = draw_value(
        st.lists(st.lists(level, min_size=vocab, max_size=vocab), min_size=1, max_size=4)
    )
    return rows, [draw_value(sample_params(vocab)) for _ in rows]


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

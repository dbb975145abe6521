"""Tests of drawing ids in C: against a slow reference, against torch, and against the filters of
transformers on logits of the bundled model."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from transformers.generation import logits_process

from continuo.engine.batch import RowResult, SampleParams
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.core.turn import uniform
from continuo.engine.device.sampling import draw
from continuo.engine.device.weights import resolve
from continuo.engine.sampling import Sampling
from continuo.engine.text import ModelText
from tests.support import transformers_oracle as oracle
from tests.support.native_draws import NativeDraws, processor_classes
from tests.support.sampling_reference import Only, penalised, reference_ids, tables

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed"),
]

LAST_UNIFORM = 1 - 2**-53
ROUNDING = 1e-6
"""Distance from the border of two candidates within which a random number may draw either."""


@pytest.fixture(scope="module", params=processor_classes())
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeDraws:
    return NativeDraws(tmp_path_factory.mktemp("draws"), request.param)


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> NativeDraws:
    return NativeDraws(tmp_path_factory.mktemp("draws"), "native")


@settings(max_examples=80, deadline=None)
@given(table=tables())
def test_draws_and_logprobs_equal_the_reference(
    native: NativeDraws, table: tuple[list[list[float]], list[SampleParams]]
) -> None:
    rows, samples = table
    results = native.draw(torch.tensor(rows), samples)
    for row, sample, drawn in zip(rows, samples, results, strict=True):
        assert drawn.id in reference_ids(row, sample)
        count = sample.sampling.logprobs
        assert (drawn.logprobs is None) == (count is None)
        if drawn.logprobs is None or count is None:
            continue
        logits = torch.from_numpy(penalised(row, sample)).double()
        expected = (logits - logits.logsumexp(0)).tolist()
        top = [pair for pair in drawn.logprobs.top if pair[0] < len(row)]
        likeliest = logits.sort(descending=True, stable=True).indices[:count].tolist()
        assert drawn.logprobs.drawn == pytest.approx(expected[drawn.id], abs=1e-4)
        assert [id for id, _ in top] == likeliest
        values = [expected[id] for id in likeliest]
        assert [value for _, value in top] == pytest.approx(values, abs=1e-4)


def make_logits(kind: str, vocab: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(vocab, generator=generator)
    chosen = torch.randperm(vocab, generator=generator)
    match kind:
        case "narrow":
            return noise * 0.01
        case "normal":
            return noise
        case "wide":
            return noise * 3
        case "peaked":
            noise[chosen[: vocab // 100]] += 9
            return noise
        case "few levels":
            return (noise * 1.5).round()
        case "all equal":
            return torch.full((vocab,), -1.25)
        case "three survivors":
            return noise.index_fill(0, chosen[3:], -math.inf)
        case "one survivor":
            return noise.index_fill(0, chosen[1:], -math.inf)
        case "outlier":
            return (noise * 0.01).index_fill(0, chosen[:1], -1e30)
        case "two clusters":
            return (noise * 1e-4).index_add(
                0, chosen[: vocab // 2], torch.full((vocab // 2,), 30.0)
            )
        case "huge":
            return noise * 1e37
        case _:
            raise AssertionError(kind)


KINDS = (
    *("narrow", "normal", "wide", "peaked", "few levels", "all equal", "three survivors"),
    *("one survivor", "outlier", "two clusters", "huge"),
)


def make_samples(count: int, vocab: int, source: random.Random) -> list[SampleParams]:
    def make() -> SampleParams:
        params = Sampling(
            temperature=source.choice((1e-30, 0.01, 0.3, 0.8, 1.0, 2.0)),
            top_p=source.choice((1.0, 1.0, 0.9999, 0.95, 0.5, 1e-9)),
            top_k=source.choice((0, 0, 0, 1, 2, 50, vocab - 1, vocab, 10 * vocab)),
            min_p=source.choice((0.0, 0.0, 0.0, 1e-6, 0.05, 0.5, 1.0)),
        )
        return SampleParams(params, source.choice((0.0, *(source.random() for _ in range(6)))))

    return [make() for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1920, 32_000])
def test_draws_equal_those_of_torch(best: NativeDraws, kind: str, vocab: int) -> None:
    """The two differ only where the random number lies within rounding of the border of two
    candidates, which none of these does."""
    logits = make_logits(kind, vocab, torch.Generator().manual_seed(vocab))
    samples = make_samples(40 if vocab < 10_000 else 12, vocab, random.Random(vocab))
    rows = logits.expand(len(samples), -1)
    expected = draw(rows, samples).ids.tolist()
    assert [drawn.id for drawn in best.draw(rows, samples)] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [1, 2, 31, 50, 127, 128, 129])
def test_top_k_has_the_candidates_of_torch(best: NativeDraws, kind: str, top_k: int) -> None:
    """A bound of the k-th largest logit lets most ids be passed over, up to 128."""
    logits = make_logits(kind, 1920, torch.Generator().manual_seed(top_k))
    params = Sampling(temperature=1.5, top_k=top_k)
    samples = [SampleParams(params, (n + 0.37) / 20) for n in range(20)]
    rows = logits.expand(len(samples), -1)
    expected = draw(rows, samples).ids.tolist()
    assert [drawn.id for drawn in best.draw(rows, samples)] == expected


@pytest.mark.parametrize("kind", ["narrow", "peaked", "few levels"])
def test_each_id_is_drawn_with_its_probability(best: NativeDraws, kind: str) -> None:
    """The ids that the seeds of 6,000 turns draw, by a chi-squared test of 64 groups of candidates
    with equal probabilities."""
    vocab, turns, groups = 1920, 6000, 64
    params = Sampling(temperature=0.8, top_p=0.95)
    logits = make_logits(kind, vocab, torch.Generator().manual_seed(3))
    samples = [SampleParams(params, uniform(seed, 0)) for seed in range(turns)]
    drawn = Counter(each.id for each in best.draw(logits.expand(turns, -1), samples))
    probs, order = (logits.double() / 0.8).softmax(0).sort(descending=True, stable=True)
    kept = int((probs.cumsum(0) < 0.95).sum()) + 1
    assert not set(drawn) - set(order[:kept].tolist())
    probs = probs[:kept] / probs[:kept].sum()
    group_of = ((probs.cumsum(0) - probs / 2) * groups).long()
    expected = torch.zeros(groups, dtype=torch.double).index_add(0, group_of, probs) * turns
    counts = torch.tensor([drawn[id] for id in order[:kept].tolist()], dtype=torch.double)
    found = torch.zeros(groups, dtype=torch.double).index_add(0, group_of, counts)
    used = expected > 0
    statistic = float(((found - expected)[used] ** 2 / expected[used]).sum())
    freedom = int(used.sum()) - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


FILTERS = [
    Sampling(temperature=0.8, top_p=0.95),
    Sampling(temperature=1.3, top_p=0.5),
    Sampling(temperature=0.7, top_k=40),
    Sampling(temperature=0.7, top_k=40, top_p=0.9),
    Sampling(temperature=1.0, min_p=0.05),
    Sampling(temperature=1.5, top_k=200, min_p=0.02),
    Sampling(temperature=0.5, top_p=1e-6),
]


@pytest.fixture(scope="module")
def real_logits() -> torch.Tensor:
    """Logits of the bundled model at all positions of a text."""
    folder = resolve(BUNDLED_MODEL, None, lambda what, fraction: None)
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = ModelText(str(folder)).encode(
        "<|user|>What do you do on a rainy day?<|end|><|assistant|>"
    )
    return oracle.full_logits(model, ids).float()


@pytest.mark.parametrize("params", FILTERS)
def test_candidates_are_those_of_transformers(
    best: NativeDraws, real_logits: torch.Tensor, params: Sampling
) -> None:
    """On logits of a real model: the random numbers in the middle of each candidate's interval, and
    at both ends."""
    warpers: list[tf.LogitsProcessor] = [logits_process.TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(logits_process.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(logits_process.TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(logits_process.MinPLogitsWarper(params.min_p))
    scores: Any = real_logits
    no_ids: Any = torch.zeros(len(scores), 0, dtype=torch.long)
    for warper in warpers:
        scores = warper(no_ids, scores)
    for row, warped in zip(real_logits, scores, strict=True):
        order = row.sort(descending=True, stable=True).indices
        kept = int((warped > -torch.inf).sum())
        if params.top_k:  # transformers keeps all that tie with the last of them
            kept = min(kept, params.top_k)
        probs = warped[order[:kept]].double().softmax(0)
        middles, is_wide = probs.cumsum(0) - probs / 2, probs > 2 * ROUNDING
        numbers = [0.0, *middles[is_wide].tolist(), LAST_UNIFORM]
        samples = [SampleParams(params, number) for number in numbers]
        drawn = [each.id for each in best.draw(row.expand(len(samples), -1), samples)]
        assert drawn[1:-1] == order[:kept][is_wide].tolist()
        assert (drawn[0], drawn[-1]) == (int(order[0]), int(order[kept - 1]))


SAMPLES = [
    SampleParams(),
    SampleParams(Sampling(temperature=0.8, top_p=0.9), uniform=0.5),
    SampleParams(Sampling(temperature=1.0, top_k=3), uniform=LAST_UNIFORM),
    SampleParams(Sampling(temperature=1.0, min_p=0.1, logprobs=2), uniform=0.0),
]


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_logit_fails_its_row(
    native: NativeDraws, sample: SampleParams, bad: float
) -> None:
    logits = torch.randn(3, 900, generator=torch.Generator().manual_seed(0))
    logits[1, 417] = bad
    before, broken, after = native.draw(logits, [sample] * 3)
    assert broken.failure is not None
    assert before.failure is after.failure is None
    behind_mask = msgspec.structs.replace(sample, mask=Only(set(range(400)), 900))
    [drawn] = native.draw(logits[1:2], [behind_mask])
    assert drawn.failure is None
    assert 0 <= drawn.id < 400


@pytest.mark.parametrize("sample", SAMPLES)
def test_row_without_any_candidate_fails(native: NativeDraws, sample: SampleParams) -> None:
    nothing = torch.full((1, 48), -math.inf)
    [drawn] = native.draw(nothing, [sample])
    assert drawn.failure == "the model's logits are not finite"
    [drawn] = native.draw(
        torch.zeros(1, 48), [msgspec.structs.replace(sample, mask=Only(set(), 48))]
    )
    assert drawn.failure is not None
    assert "grammar" in drawn.failure


def test_rounding_never_draws_an_id_that_a_filter_excludes(best: NativeDraws) -> None:
    logits = torch.randn(200, 912, generator=torch.Generator().manual_seed(0))
    allowed = set(range(3, 700, 2))
    for params in (Sampling(temperature=1.0), Sampling(temperature=0.5, min_p=0.3)):
        sample = SampleParams(params, uniform=LAST_UNIFORM, mask=Only(allowed, 912))
        for row, drawn in zip(logits, best.draw(logits, [sample] * 200), strict=True):
            assert drawn.id in allowed
            largest = row[sorted(allowed)].max()
            assert not params.min_p or row[drawn.id] >= largest + 0.5 * math.log(0.3) - 1e-6


def test_greedy_ties_draw_the_lowest_id(native: NativeDraws) -> None:
    logits = torch.zeros(2, 304)
    logits[0, [40, 41, 200]] = 3.0
    logits[1, [17]] = -0.0
    assert [each.id for each in native.draw(logits, [SampleParams()] * 2)] == [40, 0]


def test_logits_closer_than_any_bin_can_tell_apart_are_drawn_like_ties(native: NativeDraws) -> None:
    logits = torch.zeros(1, 320)
    logits[0, ::2] = 1e-45
    samples = [SampleParams(Sampling(temperature=1.0), (id + 0.5) / 320) for id in range(320)]
    drawn: list[RowResult] = native.draw(logits.expand(320, -1), samples)
    assert sorted(each.id for each in drawn) == list(range(320))


def test_parameters_outside_the_vocabulary_are_refused(best: NativeDraws) -> None:
    """No memory beyond the logits is read or written."""
    bias = SampleParams(Sampling(logit_bias={48: 1.0}))
    with pytest.raises(IndexError, match="logit_bias has an id outside the vocabulary of 48"):
        best.draw(torch.zeros(1, 48), [bias])
    mask = SampleParams(mask=Only({1}, 8))
    with pytest.raises(IndexError, match="the mask has 24 bits for a vocabulary of 48"):
        best.draw(torch.zeros(1, 48), [mask])

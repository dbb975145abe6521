"""A slow reference of sampling, and strategies for its inputs."""

from __future__ import annotations

import math
from array import array

import numpy as np
from hypothesis import strategies as st

from continuo.engine.batch import PenalizedIds, SampleParams, TokenCounts, TokenMask
from continuo.engine.sampling import Sampling


def penalised(logits: list[float], sample: SampleParams) -> np.ndarray:
    """fp32 logits after penalties and bias, one id at a time."""
    out = np.array(logits, dtype=np.float32)
    params, penalized = sample.sampling, sample.penalized
    if penalized is not None:
        factor = np.float32(params.repetition_penalty)
        for id in penalized.seen.ids:
            out[id] = out[id] / factor if out[id] > 0 else out[id] * factor
        output = penalized.output
        for id, count in zip(output.ids, output.occurrences, strict=True):
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
    """Return the ids that may be drawn: one, or several if `uniform` is close to their borders.

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
    drawn: list[int] = []
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
                drawn.append(index)
                break
    return set(order[min(drawn) : max(drawn) + 1])


@st.composite
def sample_params(draw_value: st.DrawFn, vocab: int) -> SampleParams:
    some_ids = st.integers(0, vocab - 1)
    penalized = None
    if draw_value(st.booleans()):
        seen, output = (draw_value(st.lists(some_ids, max_size=9)) for _ in range(2))
        penalized = PenalizedIds(TokenCounts(array("i", seen)), TokenCounts(array("i", output)))
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

# pyright: basic
"""Batched sampling on the device: logits to ids.

Order of operations: repetition penalty, frequency and presence penalty, logit bias (reported
log-probabilities are those of the logits at this point), grammar mask, temperature, top-k, top-p
(relative to the probability that top-k keeps), min-p.

Candidates are ordered by logit, ties by id. In that order each of the three filters (top-k, top-p,
min-p) keeps a prefix, so together they amount to one number per row: how many candidates are kept.
The drawn id is the first whose cumulative probability exceeds uniform * (probability kept), where
`uniform` is the row's random number in [0, 1). Rows are independent: other rows of the batch have
no influence.

`native/draw.h` does the same in C, for the native decoder, and `kernels/sampling_kernels.py` in
Triton, neither by sorting. They may differ by rounding: where
`uniform` * (probability kept) lies within about a millionth of the border between two candidates.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continuo.engine.batch import BatchRow, Logprobs, RowResult, SampleParams, TokenCounts
from continuo.engine.device.step_inputs import Ints, upload

PARTIAL_SORT_SIZE = 512
"""Number of likeliest candidates that are sorted first on a CPU; the whole vocabulary is sorted
only if these do not suffice."""

Floats = NDArray[np.floating[Any]]


@dataclass(slots=True)
class SamplerOutput:
    """Draws from S rows of logits, in device or host memory."""

    ids: Tensor
    """[S] int64; an arbitrary id of the vocabulary where the row failed."""
    max_logits: Tensor
    """[S] the largest logit that the mask allows. Not finite where a logit is NaN or +inf, or all
    are -inf: the row has failed."""
    logprobs: tuple[Tensor, Tensor, Tensor] | None
    """Log-probabilities of the drawn ids [S]; those of the n likeliest ids [S, n]; and the n
    likeliest ids [S, n]. None if no row requests log-probabilities."""

    def to_host(self) -> SamplerOutput:
        """Copy to host memory. On CUDA the copies are asynchronous: the caller waits for an event
        before it reads them."""
        parts = None
        if self.logprobs is not None:
            drawn, top, ids = self.logprobs
            parts = (copy_to_host(drawn), copy_to_host(top), copy_to_host(ids))
        return SamplerOutput(copy_to_host(self.ids), copy_to_host(self.max_logits), parts)

    def to_row_results(self, samples: list[SampleParams]) -> list[RowResult]:
        """Convert to one RowResult per row. Requires output in host memory."""
        is_finite = torch.isfinite(self.max_logits).tolist()
        ids = self.ids.tolist()
        return [
            RowResult(ids[row], self._unpack_logprobs(row, sample.sampling.logprobs))
            if is_finite[row]
            else RowResult(ids[row], failure=describe_failure(sample))
            for row, sample in enumerate(samples)
        ]

    def _unpack_logprobs(self, row: int, count: int | None) -> Logprobs | None:
        if count is None or self.logprobs is None:
            return None
        drawn, top, ids = self.logprobs
        pairs = zip(ids[row, :count].tolist(), top[row, :count].tolist(), strict=True)
        return Logprobs(float(drawn[row]), sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def assign_to_rows(drawn: Iterable[RowResult], rows: Sequence[BatchRow]) -> list[RowResult | None]:
    """Return the result of each row, given those of all draws in order; None for a row that draws
    nothing."""
    remaining = iter(drawn)
    results: list[RowResult | None] = []
    for row in rows:
        result = None if row.sample is None else next(remaining)
        if result is not None and row.draft_samples:
            after_drafts = tuple(islice(remaining, len(row.draft_samples)))
            result = msgspec.structs.replace(result, after_drafts=after_drafts)
        results.append(result)
    return results


def describe_failure(sample: SampleParams) -> str:
    """Describe why no id can be drawn for a row."""
    if sample.mask is None:
        return "the model's logits are not finite"
    return "the grammar has become too complex, or the model's logits are not finite"


def copy_to_host(tensor: Tensor) -> Tensor:
    """Copy to host memory, asynchronously on CUDA."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def draw(logits: Tensor, samples: list[SampleParams]) -> SamplerOutput:
    """Draw one id per row from logits [S, vocab] of any float dtype. On CUDA the work is only
    enqueued."""
    if all(is_plain_greedy(sample) for sample in samples):
        max_logits, ids = logits.max(-1)
        return SamplerOutput(ids, max_logits, None)
    kernels = find_kernels(logits.device)
    is_modified = any(sample.penalized or sample.sampling.logit_bias for sample in samples)
    has_logprobs = any(sample.sampling.logprobs is not None for sample in samples)
    if kernels is None or is_modified or has_logprobs:
        logits = logits.float()
    if is_modified:
        logits = logits.clone()
        _penalise(logits, samples)
        _add_bias(logits, samples)
    unmasked = logits
    if any(sample.mask for sample in samples):
        logits = (_mask if kernels is None else kernels.mask)(logits, samples)
    max_logits, ids = logits.max(-1)
    random_rows = [row for row, sample in enumerate(samples) if sample.sampling.temperature > 0]
    if kernels is not None and random_rows:
        kernels.draw_at_random(logits, max_logits, samples, random_rows, ids)
    elif len(random_rows) == len(samples):
        ids = _sample(logits, samples)
    elif random_rows:
        rows = upload(np.array(random_rows), logits.device)
        ids = ids.index_copy(0, rows, _sample(logits[rows], [samples[row] for row in random_rows]))
    return SamplerOutput(ids, max_logits, _take_logprobs(unmasked, ids, samples))


@functools.cache
def find_kernels(device: torch.device) -> ModuleType | None:
    """Return the sampling kernels, if they are compiled for the device: a CUDA device, if triton is
    installed."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    # triton is installed only where torch supports CUDA.
    from continuo.engine.device.kernels import sampling_kernels  # noqa: PLC0415

    return sampling_kernels


def is_plain_greedy(sample: SampleParams) -> bool:
    """Whether the drawn id is the argmax of the unmodified logits, and no log-probabilities are
    requested."""
    return (
        sample.sampling.temperature == 0
        and sample.sampling.logprobs is None
        and sample.penalized is None
        and not sample.sampling.logit_bias
        and sample.mask is None
    )


def _penalise(logits: Tensor, samples: list[SampleParams]) -> None:
    """Apply penalties in place.

    Repetition penalty as in transformers: a positive logit of a seen id is divided by the penalty,
    a negative one multiplied. Then frequency * count + presence is subtracted from the logit of
    each id in the output, where count is how often the output contains the id.
    """
    seen_at, counted_at = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    factors: list[Floats] = [np.empty(0)]
    decrements: list[Floats] = [np.empty(0)]
    vocab = logits.shape[1]
    for row, sample in enumerate(samples):
        sampling, penalized = sample.sampling, sample.penalized
        if penalized is None:
            continue
        if sampling.repetition_penalty != 1.0:
            ids, _ = _read_counts(penalized.seen)
            seen_at.append(row * vocab + ids)
            factors.append(np.full(len(ids), sampling.repetition_penalty))
        if sampling.presence_penalty or sampling.frequency_penalty:
            ids, occurrences = _read_counts(penalized.output)
            counted_at.append(row * vocab + ids)
            decrements.append(sampling.presence_penalty + sampling.frequency_penalty * occurrences)
    seen, counted = np.concatenate(seen_at), np.concatenate(counted_at)
    flat = logits.view(-1)
    if len(seen):
        indices = upload(seen, logits.device)
        factor = upload(np.concatenate(factors).astype(np.float32), logits.device)
        old = flat[indices]
        flat[indices] = torch.where(old > 0, old / factor, old * factor)
    if len(counted):
        indices = upload(counted, logits.device)
        flat[indices] -= upload(np.concatenate(decrements).astype(np.float32), logits.device)


def _read_counts(counts: TokenCounts) -> tuple[Ints, Ints]:
    """Return the ids that occur, and how often each does."""
    ids, occurrences = np.array(counts.ids, np.int64), np.array(counts.occurrences, np.int64)
    return ids[occurrences > 0], occurrences[occurrences > 0]


def _add_bias(logits: Tensor, samples: list[SampleParams]) -> None:
    vocab = logits.shape[1]
    pairs = [
        (row * vocab + token, bias)
        for row, sample in enumerate(samples)
        for token, bias in sample.sampling.logit_bias.items()
    ]
    if pairs:
        indices, biases = zip(*pairs, strict=True)
        logits.view(-1).index_add_(
            0,
            upload(np.array(indices), logits.device),
            upload(np.array(biases, dtype=np.float32), logits.device),
        )


def _mask(logits: Tensor, samples: list[SampleParams]) -> Tensor:
    """Return logits [S, vocab] with -inf where a row's token mask does not allow the id."""
    vocab = logits.shape[1]
    packed = np.full((len(samples), -(-vocab // 8)), 0xFF, dtype=np.uint8)
    for row, sample in enumerate(samples):
        if sample.mask is not None:
            packed[row] = np.frombuffer(sample.mask.compute_bitmask(), np.uint8)[: packed.shape[1]]
    allowed = np.unpackbits(packed, axis=1, count=vocab, bitorder="little").astype(np.bool_)
    return torch.where(upload(allowed, logits.device), logits, -torch.inf)


def _take_logprobs(
    logits: Tensor, ids: Tensor, samples: list[SampleParams]
) -> tuple[Tensor, Tensor, Tensor] | None:
    counts = [s.sampling.logprobs for s in samples if s.sampling.logprobs is not None]
    if not counts:
        return None
    logprobs = logits.log_softmax(-1)
    top = logprobs.topk(min(max(counts), logits.shape[1]), dim=-1)
    return logprobs.gather(1, ids[:, None])[:, 0], top.values, top.indices


def _sample(logits: Tensor, samples: list[SampleParams]) -> Tensor:
    """Draw ids [M] at random from logits [M, vocab] fp32. Every temperature is above zero."""
    drawn = [(sample.sampling, sample.uniform) for sample in samples]
    rows = [(p.temperature, p.top_k, p.top_p, p.min_p, uniform) for p, uniform in drawn]
    params = upload(np.array(rows), logits.device)
    temperature = params[:, :1].to(logits.dtype)
    probs = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    if logits.device.type != "cpu" or logits.shape[1] <= PARTIAL_SORT_SIZE + 1:
        return _pick(*_sort_candidates(logits), probs, params)[0]
    ids, is_exact = _pick(*_sort_top_candidates(logits, PARTIAL_SORT_SIZE), probs, params)
    open_rows = (~is_exact).nonzero()[:, 0]
    if len(open_rows):
        candidates = _sort_candidates(logits[open_rows])
        ids[open_rows] = _pick(*candidates, probs[open_rows], params[open_rows])[0]
    return ids


def _sort_candidates(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Sort all ids of each row, the likeliest first, ties by id. Returns the ids [M, vocab], and
    flags [M]: whether the order of each row is certain, which is always true here, unlike in
    `_sort_top_candidates`."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices
    return ids, torch.ones(len(logits), dtype=torch.bool, device=logits.device)


def _sort_top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` likeliest ids of each row [M, count], in the order of `_sort_candidates`,
    and flags [M]: false if the last of these ids ties with an id that is not among them. Such a row
    must be sorted whole, because topk may return either of the two."""
    values, ids = logits.topk(count + 1, dim=-1)
    is_exact = values[:, -2] > values[:, -1]
    ids = ids[:, :-1].sort(dim=-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order), is_exact


def _pick(ids: Tensor, exact: Tensor, probs: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    """Pick one candidate per row.

    ids [M, K]: the K most probable ids, in order; exact [M]: false where a tie makes the last of
    the K ids ambiguous; probs [M, vocab]; params [M, 5] float64: temperature, top_k, top_p, min_p,
    uniform. Returns the drawn ids [M], and flags [M]: true where the K candidates suffice to
    determine the drawn id.
    """
    _, top_k, top_p, min_p, uniform = params[:, :, None].unbind(1)  # each [M, 1]
    vocab, count = probs.shape[1], ids.shape[1]
    prob = probs.gather(1, ids).double()
    reached = prob.cumsum(-1)  # [M, K]
    by_k = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).long()
    left = torch.where(top_k > 0, reached.gather(1, (by_k - 1).clamp(max=count - 1)), 1.0)
    by_p = (reached < top_p * left).sum(-1, keepdim=True) + 1  # count + 1: beyond the candidates
    by_p = torch.where(top_p < 1, by_p.clamp(max=vocab), vocab)
    by_min = (prob >= min_p * prob[:, :1]).sum(-1, keepdim=True)
    by_min = torch.where(by_min < count, by_min, min(count + 1, vocab))
    by_min = torch.where(min_p > 0, by_min, vocab)
    kept = torch.minimum(torch.minimum(by_k, by_p), by_min)
    total = torch.where(kept < vocab, reached.gather(1, (kept - 1).clamp(0, count - 1)), 1.0)
    place = (reached <= uniform * total).sum(-1, keepdim=True)
    possible = (prob > 0).sum(-1, keepdim=True)  # by rounding errors, `place` could exceed these
    enough = (kept <= count) | ((kept == vocab) & (place < count))
    enough &= (top_k == 0) | (by_k <= count)
    place = place.minimum(kept.minimum(possible) - 1).clamp(0, count - 1)
    return ids.gather(1, place)[:, 0], enough[:, 0] & exact

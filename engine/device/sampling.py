# pyright: basic
"""From logits to ids, for one batch on the device. Knows no model and no sequence.

Order of operations: repetition penalty, frequency and presence penalty, logit bias; here
log-probabilities are taken; then the mask of a grammar, temperature, top-k, top-p (of what top-k
has left), min-p.

Candidates stand in the order of their logits, ties by id. In that order each of the three cuts
keeps a prefix, so that all of them together are one number per row: how many candidates stay.
The drawn id is the first whose cumulative probability exceeds uniform * (probability kept).
Everything is computed row by row: what else is in the batch has no influence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from continuo.engine.batch import Logprobs, RowResult, SampleParams
from continuo.engine.device.step_inputs import upload

PARTIAL_SORT_SIZE = 512
"""On a CPU so many of the likeliest candidates are tried before the whole vocabulary is sorted."""


@dataclass(slots=True)
class SamplerOutput:
    """What was drawn for S rows, still on the device."""

    ids: Tensor
    """[S] int64; any id of the vocabulary where the row failed."""
    max_logits: Tensor
    """[S] the largest logit that may be drawn: not finite where a logit is NaN or +inf, or all are
    -inf."""
    logprobs: tuple[Tensor, Tensor, Tensor] | None
    """Of the drawn ids [S]; of the likeliest [S, n]; their ids [S, n]."""

    def to_host(self) -> SamplerOutput:
        """The same in host memory; on CUDA only promised: wait for an event before reading."""
        parts = None
        if self.logprobs is not None:
            drawn, top, ids = self.logprobs
            parts = (_to_host(drawn), _to_host(top), _to_host(ids))
        return SamplerOutput(_to_host(self.ids), _to_host(self.max_logits), parts)

    def to_row_results(self, samples: list[SampleParams]) -> list[RowResult]:
        """One Drawn per row. Only on a Draw in host memory."""
        sound = torch.isfinite(self.max_logits).tolist()
        ids = self.ids.tolist()
        return [
            RowResult(ids[row], self._unpack_logprobs(row, sample.logprobs))
            if sound[row]
            else RowResult(ids[row], failure=_describe_failure(sample))
            for row, sample in enumerate(samples)
        ]

    def _unpack_logprobs(self, row: int, count: int) -> Logprobs | None:
        if count < 0 or self.logprobs is None:
            return None
        drawn, top, ids = self.logprobs
        pairs = zip(ids[row, :count].tolist(), top[row, :count].tolist(), strict=True)
        return Logprobs(float(drawn[row]), sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _describe_failure(sample: SampleParams) -> str:
    if sample.mask is None:
        return "the model's logits are not finite"
    return "the grammar has become too complex, or the model's logits are not finite"


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def draw(logits: Tensor, samples: list[SampleParams]) -> SamplerOutput:
    """logits [S, vocab] in any float dtype, one Sample per row. Never waits on CUDA."""
    if all(is_plain_greedy(sample) for sample in samples):
        peak, ids = logits.max(-1)
        return SamplerOutput(ids, peak, None)
    logits = logits.float()
    if any(sample.penalties or sample.logit_bias for sample in samples):
        logits = logits.clone()
        _penalise(logits, samples)
        _add_bias(logits, samples)
    told = logits
    if any(sample.mask for sample in samples):
        logits = _mask(logits, samples)
    peak, ids = logits.max(-1)
    warm = [row for row, sample in enumerate(samples) if sample.temperature > 0]
    if len(warm) == len(samples):
        ids = _sample(logits, samples)
    elif warm:
        rows = upload(np.array(warm), logits.device)
        ids = ids.index_copy(0, rows, _sample(logits[rows], [samples[row] for row in warm]))
    return SamplerOutput(ids, peak, _take_logprobs(told, ids, samples))


def is_plain_greedy(sample: SampleParams) -> bool:
    """Whether the likeliest id is all that is wanted."""
    return (
        sample.temperature == 0
        and sample.logprobs < 0
        and sample.penalties is None
        and not sample.logit_bias
        and sample.mask is None
    )


def _penalise(logits: Tensor, samples: list[SampleParams]) -> None:
    """In place. Repetition as in transformers: a seen id's logit is divided by the penalty where
    it is positive, multiplied where it is negative. Then count * frequency + presence is
    subtracted from the ids of the output."""
    seen_at: list[int] = []
    counted_at: list[int] = []
    factors: list[float] = []
    lowered: list[float] = []
    vocab = logits.shape[1]
    for row, sample in enumerate(samples):
        penalties = sample.penalties
        if penalties is None:
            continue
        if penalties.repetition != 1.0:
            seen_at.extend(row * vocab + token for token in penalties.seen_ids)
            factors.extend([penalties.repetition] * len(penalties.seen_ids))
        if penalties.presence or penalties.frequency:
            counted_at.extend(row * vocab + token for token in penalties.output_counts)
            lowered.extend(
                penalties.presence + penalties.frequency * count
                for count in penalties.output_counts.values()
            )
    flat = logits.view(-1)
    if seen_at:
        where = upload(np.array(seen_at), logits.device)
        factor = upload(np.array(factors, dtype=np.float32), logits.device)
        found = flat[where]
        flat[where] = torch.where(found > 0, found / factor, found * factor)
    if counted_at:
        where = upload(np.array(counted_at), logits.device)
        flat[where] -= upload(np.array(lowered, dtype=np.float32), logits.device)


def _add_bias(logits: Tensor, samples: list[SampleParams]) -> None:
    vocab = logits.shape[1]
    pairs = [
        (row * vocab + token, bias)
        for row, sample in enumerate(samples)
        for token, bias in sample.logit_bias
    ]
    if pairs:
        where, biases = zip(*pairs, strict=True)
        logits.view(-1).index_add_(
            0,
            upload(np.array(where), logits.device),
            upload(np.array(biases, dtype=np.float32), logits.device),
        )


def _mask(logits: Tensor, samples: list[SampleParams]) -> Tensor:
    """[S, vocab] with -inf where a row's grammar does not allow the id."""
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
    wanted = max(sample.logprobs for sample in samples)
    if wanted < 0:
        return None
    logprobs = logits.log_softmax(-1)
    top = logprobs.topk(min(wanted, logits.shape[1]), dim=-1)
    return logprobs.gather(1, ids[:, None])[:, 0], top.values, top.indices


def _sample(logits: Tensor, samples: list[SampleParams]) -> Tensor:
    """logits [M, vocab] fp32, every temperature above zero -> ids [M]."""
    wishes = upload(
        np.array([(s.temperature, s.top_k, s.top_p, s.min_p, s.uniform) for s in samples]),
        logits.device,
    )
    temperature = wishes[:, :1].to(logits.dtype)
    probs = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    if logits.device.type != "cpu" or logits.shape[1] <= PARTIAL_SORT_SIZE + 1:
        return _pick(*_sort_candidates(logits), probs, wishes)[0]
    ids, settled = _pick(*_sort_top_candidates(logits, PARTIAL_SORT_SIZE), probs, wishes)
    open_rows = (~settled).nonzero()[:, 0]
    if len(open_rows):
        rest = _sort_candidates(logits[open_rows])
        ids[open_rows] = _pick(*rest, probs[open_rows], wishes[open_rows])[0]
    return ids


def _sort_candidates(logits: Tensor) -> tuple[Tensor, Tensor]:
    """All ids [M, vocab], likeliest first, ties by id; and [M] True: the list is complete."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices
    return ids, torch.ones(len(logits), dtype=torch.bool, device=logits.device)


def _sort_top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` columns of `_ordered`; and [M] whether that is so: not where the last of
    them ties with the next, since topk does not say which of two equals it returns."""
    values, ids = logits.topk(count + 1, dim=-1)
    clear = values[:, -2] > values[:, -1]
    ids = ids[:, :-1].sort(dim=-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order), clear


def _pick(ids: Tensor, exact: Tensor, probs: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    """ids [M, K] the first K candidates, probs [M, vocab], wishes [M, 5] float64 -> the drawn ids
    [M], and [M] whether K candidates were enough to know them."""
    _, top_k, top_p, min_p, uniform = params[:, :, None].unbind(1)  # each [M, 1]
    vocab, count = probs.shape[1], ids.shape[1]
    prob = probs.gather(1, ids).double()
    reached = prob.cumsum(-1)  # [M, K]
    by_k = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).long()
    left = torch.where(top_k > 0, reached.gather(1, (by_k - 1).clamp(max=count - 1)), 1.0)
    by_p = (reached < top_p * left).sum(-1, keepdim=True) + 1  # count + 1: beyond what we see
    by_p = torch.where(top_p < 1, by_p.clamp(max=vocab), vocab)
    by_min = (prob >= min_p * prob[:, :1]).sum(-1, keepdim=True)
    by_min = torch.where(by_min < count, by_min, min(count + 1, vocab))
    by_min = torch.where(min_p > 0, by_min, vocab)
    kept = torch.minimum(torch.minimum(by_k, by_p), by_min)
    total = torch.where(kept < vocab, reached.gather(1, (kept - 1).clamp(0, count - 1)), 1.0)
    place = (reached <= uniform * total).sum(-1, keepdim=True)
    possible = (prob > 0).sum(-1, keepdim=True)  # beyond them rounding alone would lead
    enough = (kept <= count) | ((kept == vocab) & (place < count))
    enough &= (top_k == 0) | (by_k <= count)
    place = place.minimum(kept.minimum(possible) - 1).clamp(0, count - 1)
    return ids.gather(1, place)[:, 0], enough[:, 0] & exact

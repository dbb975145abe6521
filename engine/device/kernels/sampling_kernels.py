# pyright: basic, reportArgumentType=false, reportOperatorIssue=false
"""Sampling in Triton: the token masks of a batch, and draws at random without sorting.

Candidates have the order that `sampling.py` defines: by logit, the largest first, ties by id; so an
id does not depend on the device that draws it. The order is not computed. A cut in it, which is the
last candidate that a limit keeps, or the one that is drawn, is found by its logit, four bits at a
time: one pass over the vocabulary sums the weights of the candidates by the next four bits, and the
cumulative sums give the bits of the candidate at which the limit is reached. A last pass finds the
cut among the candidates that have the same logit, in the order of their ids.

    key     the bits of a logit as an unsigned number that is smaller for a larger logit
    weight  exp((logit - largest logit) / temperature): 1 for the likeliest candidate
    cut     (key, ties): the candidates with a smaller key, and the first `ties` of those that have
            the same

Few candidates matter. So the vocabulary is split: one program for each split of each row lists the
first candidates of its split, and one program for each row draws from the lists. What the lists say
is certain as far as the smallest key at which one of them ends: where a cut or the drawn candidate
lies beyond, the row is drawn once more, from the whole vocabulary. With limits, or logits like
those of a trained model, that is rare.

Each thread adds the weights of its ids in fp32 for a stretch of blocks; the sums of threads,
stretches and splits are added in fp32 and in fp64.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from continuo.engine.batch import SampleParams
from continuo.engine.device.step_inputs import upload

BLOCK = 1024
"""Ids that a program reads at once."""
STRETCH = 8
"""Blocks after which the threads of a program add their sums: they wait for one another then."""
KEY_BITS = {torch.float32: 32, torch.float16: 20, torch.bfloat16: 16}
"""Leading bits of a key, by dtype of the logits, after which no two logits differ: a multiple of
four."""
SPLIT = 4096
"""Ids of which one program lists the first candidates."""
LISTED = 64
"""Candidates of each split that are listed."""
DRAW_FIELDS = 6
"""Temperature, top_k, top_p, min_p, uniform, row of the logits."""
LAUNCH_OPTIONS = {"num_warps": 8}
"""Eight warps: a thread sums the weights of four ids by their next four bits."""
MASK_ALIGNMENT = 16
"""Bytes. A kernel is compiled once more for pointers that are not aligned."""


@triton.jit
def _read_block(
    logits, begin, vocab, high, temperature, BLOCK: tl.constexpr, DROPPED: tl.constexpr
):
    """Return keys and weights of the ids from `begin` on; the weight of an id that the vocabulary
    does not have, or whose logit is -inf, is -1."""
    id = begin + tl.arange(0, BLOCK)
    x = tl.load(logits + id, mask=id < vocab, other=float("-inf")).to(tl.float32)
    x = tl.where(x == 0.0, 0.0, x)  # -0.0 ties with 0.0
    weight = tl.where(x == float("-inf"), -1.0, tl.exp((x - high) / temperature))
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits >= 0, bits ^ 0x7FFFFFFF, bits).to(tl.uint32, bitcast=True)
    return key >> DROPPED, weight


@triton.jit
def _search(  # noqa: PLR0913 - constants of compilation are arguments, too
    logits,
    vocab,
    high,
    temperature,
    target,
    IS_COUNT: tl.constexpr,
    IS_INCLUSIVE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """Find the key of the first candidate at which the cumulative weight (the number of candidates,
    if IS_COUNT) exceeds `target` (or reaches it, if IS_INCLUSIVE), or that of the last candidate
    that has a weight. Returns the key and the cumulative weight of the smaller keys."""
    number = tl.arange(0, 16)
    prefix = tl.full([], 0, tl.uint32)
    reached = tl.full([], 0.0, tl.float64)
    for step in range(BITS // 4):
        shift = BITS - 4 - 4 * step
        sums = tl.zeros([16], tl.float64)
        for stretch in range(0, vocab, BLOCK * STRETCH):
            part = tl.zeros([BLOCK, 16], tl.float32)
            for begin in range(stretch, tl.minimum(stretch + BLOCK * STRETCH, vocab), BLOCK):
                key, weight = _read_block(logits, begin, vocab, high, temperature, BLOCK, 32 - BITS)
                is_member = (weight >= 0) & ((key >> shift >> 4) == prefix)
                if IS_COUNT:
                    weight = is_member.to(tl.float32)
                weight = tl.where(is_member, weight, 0.0)
                digit = ((key >> shift) & 15).to(tl.int32)
                part += tl.where(digit[:, None] == number[None, :], weight[:, None], 0.0)
            sums += tl.sum(part, 0).to(tl.float64)
        cumulative = reached + tl.cumsum(sums, 0)
        if IS_INCLUSIVE:
            is_reached = (sums > 0) & (cumulative >= target)
        else:
            is_reached = (sums > 0) & (cumulative > target)
        last = tl.max(tl.where(sums > 0, number, 0), 0)
        chosen = tl.min(tl.where(is_reached, number, last), 0)
        reached = tl.sum(tl.where(number == chosen, cumulative - sums, 0.0), 0)
        prefix = (prefix << 4) | tl.cast(chosen, tl.uint32)
    return prefix, reached


@triton.jit
def _weigh(
    logits,
    vocab,
    high,
    temperature,
    limit,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """Return the weight of the candidates with a key below `limit`, the number of those with this
    key, and the weight of each of the latter (1 if they have none)."""
    before = tl.full([], 0.0, tl.float64)
    ties = tl.zeros([BLOCK], tl.int32)
    each = tl.zeros([BLOCK], tl.float32)
    for stretch in range(0, vocab, BLOCK * STRETCH):
        part = tl.zeros([BLOCK], tl.float32)
        for begin in range(stretch, tl.minimum(stretch + BLOCK * STRETCH, vocab), BLOCK):
            key, weight = _read_block(logits, begin, vocab, high, temperature, BLOCK, 32 - BITS)
            is_before, is_tied = (weight > 0) & (key < limit), (weight >= 0) & (key == limit)
            part += tl.where(is_before, weight, 0.0)
            ties += is_tied.to(tl.int32)
            each = tl.maximum(each, tl.where(is_tied, weight, 0.0))
        before += tl.sum(part, 0).to(tl.float64)
    weight = tl.max(each, 0)
    return before, tl.sum(ties, 0), tl.where(weight > 0, weight, 1.0)


@triton.jit
def _read_draw(draws, high, FIELDS: tl.constexpr):
    """Return the parameters of this program's row, its number in the logits, its largest logit and
    whether that is finite."""
    draw = draws + tl.program_id(0) * FIELDS
    temperature = tl.maximum(tl.load(draw).to(tl.float32), 1e-30)
    top_k, top_p = tl.load(draw + 1), tl.load(draw + 2)
    min_p, uniform = tl.load(draw + 3).to(tl.float32), tl.load(draw + 4)
    row = tl.load(draw + 5).to(tl.int64)
    largest = tl.load(high + row).to(tl.float32)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    return temperature, top_k, top_p, min_p, uniform, row, largest, is_finite


@triton.jit
def _list(  # noqa: PLR0913 - constants of compilation are arguments, too
    logits,  # [S, VOCAB]
    high,  # [S] the largest logit of each row
    draws,  # [M, FIELDS] fp64
    listed,  # [M, splits, LISTED] receives logits, in the order of their ids; -inf after the last
    listed_ids,  # [M, splits, LISTED] int32: receives their ids
    ends,  # [M, splits] int64: receives the key from which on candidates may not be listed
    weights,  # [M, splits] fp64: receives the weight of all candidates
    VOCAB: tl.constexpr,
    SPLIT: tl.constexpr,
    LISTED: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
    FIELDS: tl.constexpr,
):
    temperature, _, _, _, _, row, largest, is_finite = _read_draw(draws, high, FIELDS)
    split = tl.program_id(1)
    first = split * SPLIT
    logits += row * VOCAB + first
    count = tl.where(is_finite, tl.minimum(SPLIT, VOCAB - first), 0)
    end, before = _search(
        logits, count, largest, temperature, LISTED, True, True, BITS, BLOCK, STRETCH
    )
    ties = LISTED - before.to(tl.int32)
    line = tl.program_id(0) * tl.num_programs(1) + split
    listed += line.to(tl.int64) * LISTED
    listed_ids += line.to(tl.int64) * LISTED
    candidates, tied, kept = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), 0
    weight_sum = tl.full([], 0.0, tl.float64)
    for begin in range(0, count, BLOCK):
        key, weight = _read_block(logits, begin, count, largest, temperature, BLOCK, 32 - BITS)
        is_candidate = weight >= 0
        is_tied = is_candidate & (key == end)
        tie = tied + tl.cumsum(is_tied.to(tl.int32), 0)
        is_kept = (is_candidate & (key < end)) | (is_tied & (tie <= ties))
        place = kept + tl.cumsum(is_kept.to(tl.int32), 0) - 1
        id = begin + tl.arange(0, BLOCK)
        tl.store(listed + place, tl.load(logits + id, mask=is_kept), mask=is_kept)
        tl.store(listed_ids + place, first + id, mask=is_kept)
        candidates += tl.sum(is_candidate.to(tl.int32), 0)
        tied += tl.sum(is_tied.to(tl.int32), 0)
        kept += tl.sum(is_kept.to(tl.int32), 0)
        weight_sum += tl.sum(tl.where(is_candidate, weight, 0.0), 0).to(tl.float64)
    number = tl.arange(0, LISTED)
    nothing = tl.full([LISTED], float("-inf"), tl.float32).to(listed.dtype.element_ty)
    tl.store(listed + number, nothing, mask=number >= kept)
    beyond_all = tl.full([], 1, tl.int64) << BITS
    tl.store(ends + line, tl.where(candidates > LISTED, end.to(tl.int64), beyond_all))
    tl.store(weights + line, weight_sum)


@triton.jit
def _find_cut(  # noqa: PLR0913 - constants of compilation are arguments, too
    logits,
    count,
    high,
    temperature,
    top_k,
    top_p,
    min_p,
    weight_sum,
    end,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """Return the cut that the limits make among the first `count` logits, the weight of what it
    keeps, and whether all keys that this depends on are below `end`. Candidates that are not among
    these logits, all from `end` on, have the rest of `weight_sum`."""
    no_ties = tl.full([], 1000000000, tl.int32)
    cut, cut_ties = tl.full([], 0xFFFFFFFF, tl.uint32) >> (32 - BITS), no_ties
    kept = weight_sum
    is_certain = tl.full([], 1, tl.int1)
    if top_k > 0:
        cut, passed = _search(
            logits, count, high, temperature, top_k, True, True, BITS, BLOCK, STRETCH
        )
        cut_ties = tl.minimum(top_k - passed, 1e9).to(tl.int32)
        before, ties, each = _weigh(logits, count, high, temperature, cut, BITS, BLOCK, STRETCH)
        kept = before + tl.minimum(cut_ties, ties).to(tl.float64) * each.to(tl.float64)
        is_certain = cut.to(tl.int64) < end
    if min_p > 0:
        keys = tl.zeros([BLOCK], tl.uint32)
        for begin in range(0, count, BLOCK):
            key, weight = _read_block(logits, begin, count, high, temperature, BLOCK, 32 - BITS)
            is_likely = (weight >= min_p) | (weight == 1.0)
            keys = tl.maximum(keys, tl.where(is_likely, key, 0))
        likely = tl.max(keys, 0)
        if likely < cut:
            cut, cut_ties = likely, no_ties
    if top_p < 1:
        target = top_p * kept
        found, reached = _search(
            logits, count, high, temperature, target, False, True, BITS, BLOCK, STRETCH
        )
        _, ties, each = _weigh(logits, count, high, temperature, found, BITS, BLOCK, STRETCH)
        needed = tl.ceil((target - reached) / each.to(tl.float64))
        needed = tl.minimum(tl.maximum(needed, 1.0), ties.to(tl.float64)).to(tl.int32)
        if (found < cut) | ((found == cut) & (needed < cut_ties)):
            cut, cut_ties = found, needed
    if (top_k > 0) | (min_p > 0) | (top_p < 1):
        before, ties, each = _weigh(logits, count, high, temperature, cut, BITS, BLOCK, STRETCH)
        kept = before + tl.minimum(cut_ties, ties).to(tl.float64) * each.to(tl.float64)
        is_certain = is_certain & (tl.cast(cut, tl.int64) < end)
    return cut, cut_ties, kept, is_certain


@triton.jit
def _draw(  # noqa: PLR0913 - constants of compilation are arguments, too
    logits,  # [S, VOCAB], or [M, SPLITS * LISTED] if FROM_LISTS
    listed_ids,  # [M, SPLITS * LISTED] int32
    ends,  # [M, SPLITS] int64
    weights,  # [M, SPLITS] fp64
    high,  # [S] the largest logit of each row
    draws,  # [M, FIELDS] fp64
    is_drawn,  # [M] int8: receives whether the lists were sufficient, if FROM_LISTS
    ids,  # [S] int64: receives the drawn ids of the M rows
    FROM_LISTS: tl.constexpr,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    LISTED: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
    FIELDS: tl.constexpr,
):
    temperature, top_k, top_p, min_p, uniform, row, largest, is_finite = _read_draw(
        draws, high, FIELDS
    )
    draw = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PADDED)
    is_split = split < SPLITS
    weight_sum = tl.sum(tl.load(weights + draw * SPLITS + split, mask=is_split, other=0.0), 0)
    beyond_all = tl.full([], 1, tl.int64) << BITS
    if FROM_LISTS:
        logits += draw * SPLITS * LISTED
        listed_ids += draw * SPLITS * LISTED
        listed_ends = tl.load(ends + draw * SPLITS + split, mask=is_split, other=1 << BITS)
        end = tl.min(listed_ends, 0)
        count = tl.where(is_finite, SPLITS * LISTED, 0)  # a row that has failed keeps its id
    else:
        logits += row * VOCAB
        end = beyond_all
        count = tl.where(is_finite & (tl.load(is_drawn + draw) == 0), VOCAB, 0)

    cut, cut_ties, kept, is_certain = _find_cut(
        logits,
        count,
        largest,
        temperature,
        top_k,
        top_p,
        min_p,
        weight_sum,
        end,
        BITS,
        BLOCK,
        STRETCH,
    )
    target = uniform * kept
    drawn, reached = _search(
        logits, count, largest, temperature, target, False, False, BITS, BLOCK, STRETCH
    )
    is_certain = is_certain & (drawn.to(tl.int64) < end)
    _, ties, each = _weigh(logits, count, largest, temperature, drawn, BITS, BLOCK, STRETCH)
    skipped = tl.floor((target - reached) / each.to(tl.float64))
    place = tl.minimum(tl.maximum(skipped, 0.0), (ties - 1).to(tl.float64)).to(tl.int32)
    if drawn > cut:  # by rounding
        drawn, place = cut, cut_ties
    if drawn == cut:
        place = tl.minimum(place, cut_ties - 1)
    seen = tl.full([], 0, tl.int32)
    id = tl.full([], -1, tl.int32)
    for begin in range(0, count, BLOCK):
        key, weight = _read_block(logits, begin, count, largest, temperature, BLOCK, 32 - BITS)
        is_tied = (weight >= 0) & (key == drawn)
        index = seen + tl.cumsum(is_tied.to(tl.int32), 0) - 1
        is_passed = is_tied & (index <= place)
        id = tl.maximum(id, tl.max(tl.where(is_passed, begin + tl.arange(0, BLOCK), -1), 0))
        seen += tl.sum(is_tied.to(tl.int32), 0)
    is_found = is_finite & is_certain & (id >= 0)
    if FROM_LISTS:
        tl.store(is_drawn + draw, (is_found | (is_finite == 0)).to(tl.int8))
        id = tl.load(listed_ids + id, mask=is_found, other=0)
    tl.store(ids + row, id.to(tl.int64), mask=is_found)


@triton.jit(do_not_specialize=["stride"])
def _mask(
    logits,  # [S, VOCAB]
    lines,  # [S] int32: line of each row in `masks`; -1: all ids are allowed
    masks,  # [M, stride] uint8: one bit per id, least significant first
    out,  # [S, VOCAB]
    stride,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    id = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = id < VOCAB
    line = tl.load(lines + row) + tl.zeros([BLOCK], tl.int64)
    bits = tl.load(masks + line * stride + id // 8, mask=inside & (line >= 0), other=255)
    x = tl.load(logits + row * VOCAB + id, mask=inside, other=0.0)
    is_allowed = ((bits.to(tl.int32) >> (id % 8)) & 1) != 0
    tl.store(out + row * VOCAB + id, tl.where(is_allowed, x, float("-inf")), mask=inside)


def draw_at_random(
    logits: Tensor, max_logits: Tensor, samples: list[SampleParams], rows: list[int], ids: Tensor
) -> None:
    """Draw the ids of `rows` at random from logits [S, vocab], whose largest are `max_logits` [S],
    and write them to `ids` [S]. A row without finite logits keeps its id."""
    drawn = [(samples[row].sampling, samples[row].uniform, row) for row in rows]
    draws = np.array(
        [(p.temperature, p.top_k, p.top_p, p.min_p, uniform, row) for p, uniform, row in drawn],
        dtype=np.float64,
    )
    logits, device = logits.contiguous(), logits.device
    vocab = logits.shape[1]
    splits = triton.cdiv(vocab, SPLIT)
    lists = (len(rows), splits, LISTED)
    listed = torch.empty(lists, dtype=logits.dtype, device=device)
    listed_ids = torch.empty(lists, dtype=torch.int32, device=device)
    ends = torch.empty(lists[:2], dtype=torch.int64, device=device)
    weights = torch.empty(lists[:2], dtype=torch.float64, device=device)
    is_drawn = torch.empty(len(rows), dtype=torch.int8, device=device)
    on_device = upload(draws, device)
    constants = {
        "VOCAB": vocab,
        "LISTED": LISTED,
        "BITS": KEY_BITS[logits.dtype],
        "BLOCK": BLOCK,
        "STRETCH": STRETCH,
        "FIELDS": DRAW_FIELDS,
        **LAUNCH_OPTIONS,
    }
    outputs = (listed, listed_ids, ends, weights)
    _list[(len(rows), splits)](logits, max_logits, on_device, *outputs, SPLIT=SPLIT, **constants)
    constants |= {"SPLITS": splits, "SPLITS_PADDED": triton.next_power_of_2(splits)}
    for source, from_lists in ((listed, True), (logits, False)):
        _draw[(len(rows),)](
            source,
            listed_ids,
            ends,
            weights,
            max_logits,
            on_device,
            is_drawn,
            ids,
            FROM_LISTS=from_lists,
            **constants,
        )


def mask(logits: Tensor, samples: list[SampleParams]) -> Tensor:
    """Return logits [S, vocab] with -inf where a row's token mask does not allow the id. The masks
    are copied to the device packed, those of the masked rows alone."""
    count, vocab = logits.shape
    stride = triton.cdiv(vocab, 8)
    masked = [(row, sample.mask) for row, sample in enumerate(samples) if sample.mask is not None]
    head = triton.cdiv(4 * count, MASK_ALIGNMENT) * MASK_ALIGNMENT
    packed = np.empty(head + len(masked) * stride, dtype=np.uint8)
    lines = packed[: 4 * count].view(np.int32)
    lines.fill(-1)
    for line, (row, token_mask) in enumerate(masked):
        lines[row] = line
        bits = np.frombuffer(token_mask.compute_bitmask(), np.uint8)[:stride]
        begin = head + line * stride
        packed[begin : begin + stride] = bits
    on_device = upload(packed, logits.device)
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    _mask[(count, triton.cdiv(vocab, BLOCK))](
        logits,
        on_device[: 4 * count].view(torch.int32),
        on_device[head:],
        out,
        stride,
        VOCAB=vocab,
        BLOCK=BLOCK,
    )
    return out

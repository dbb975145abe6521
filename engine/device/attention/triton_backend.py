# pyright: basic, reportArgumentType=false
"""Paged attention by Triton kernels that read KV pages in place, for decode and prefill rows alike.

The G query heads that share a KV head are folded into query rows with the C tokens of a tile, so
that each key is read once:

    tile      C tokens of one row, one KV head: C * G query rows (padded to a power of 2)
    split     a stretch of the row's context; the splits of a tile run in parallel (flash-decoding)
    combine   sums the splits of a query row, each weighted by its share of the softmax

Slots after a row's end in its last page may hold NaN, but masked loads read zeros instead. Sums are
kept in fp32. Sizes: T tokens, R rows, H query heads, Hk KV heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from continuo.engine.device.attention.backend import PagedAttention
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionFn
from continuo.engine.device.step_inputs import Ints, StepInputs, upload

SPLIT_TOKENS_MIN = 512
"""Fewest context tokens of a split; with fewer, starting a kernel program costs more than its
memory reads."""
SPLITS_MAX = 64
BLOCK = 64
"""Context tokens that a kernel program reads per iteration of its loop."""
LOG2_E = 1.4426950408889634
TILE_ROWS_MAX = 64
"""Maximum number of query rows (tokens * query heads of a KV head) in one tile."""


@triton.jit
def _attend(  # noqa: PLR0913 - a kernel takes sizes and strides apart from its tensors
    query,  # [T, H, KEY_DIM]
    keys,  # [page, Hk, PAGE, KEY_DIM]
    values,  # [page, Hk, PAGE, VALUE_DIM]
    tiles,  # [N, 5] int32: row, first token, tokens, position of the first, context begin
    tables,  # [R, table_stride] int32
    partial,  # [T, H, splits, VALUE_DIM] fp32: softmax-weighted sums, normalised per split
    weights,  # [T, H, splits] fp32: log2 of each split's sum of weights
    out,  # [T, H, VALUE_DIM]: written here where there is one split, else by _combine
    scale,  # softmax scale of the scores, times log2(e)
    window,  # positions a token attends to, itself included; 0: all
    query_stride,  # elements from token to token
    table_stride,
    split_tokens,  # context tokens of one split: a multiple of BLOCK
    H: tl.constexpr,
    HK: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # H / HK
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,  # KEY_DIM as a power of two, at least 16
    VALUE_PAD: tl.constexpr,
    ROWS: tl.constexpr,  # query rows of a tile: a power of two, at least 16
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,  # context tokens of one iteration
    SPLITS: tl.constexpr,
):
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(tiles + tile * 5)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    start = tl.load(tiles + tile * 5 + 3)
    context = tl.load(tiles + tile * 5 + 4)

    query_row = tl.arange(0, ROWS)
    token = query_row // GROUP_SIZE
    step_token = first + token  # index among the step's T
    query_head = head * GROUP_SIZE + query_row % GROUP_SIZE
    valid = token < count
    position = start + token
    key_dim, value_dim = tl.arange(0, KEY_PAD), tl.arange(0, VALUE_PAD)
    q = tl.load(
        query + step_token[:, None] * query_stride + query_head[:, None] * KEY_DIM + key_dim,
        mask=valid[:, None] & (key_dim < KEY_DIM),
        other=0.0,
    )

    begin = context + split * split_tokens
    end = tl.minimum(begin + split_tokens, start + count)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    for base in range(begin, end, BLOCK):
        key_position = base + tl.arange(0, BLOCK)
        inside = key_position < end
        page = tl.load(tables + row * table_stride + key_position // PAGE, mask=inside, other=0)
        slot = (page.to(tl.int64) * HK + head) * PAGE + key_position % PAGE
        k = tl.load(
            keys + slot[None, :] * KEY_DIM + key_dim[:, None],
            mask=inside[None, :] & (key_dim < KEY_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        visible = inside[None, :] & (key_position[None, :] <= position[:, None])
        visible = visible & ((window == 0) | (key_position[None, :] > position[:, None] - window))
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        rescale = tl.exp2(best - shift)
        share = tl.exp2(scores - shift[:, None])
        v = tl.load(
            values + slot[:, None] * VALUE_DIM + value_dim[None, :],
            mask=inside[:, None] & (value_dim < VALUE_DIM)[None, :],
            other=0.0,
        )
        total = total * rescale + tl.sum(share, 1)
        mixed = mixed * rescale[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
        best = new_best

    cell = (step_token.to(tl.int64) * H + query_head) * SPLITS + split
    any_visible = total > 0
    divisor = tl.where(any_visible, total, 1.0)
    stored = valid[:, None] & (value_dim < VALUE_DIM)[None, :]
    if SPLITS == 1:
        tl.store(
            out + cell[:, None] * VALUE_DIM + value_dim,
            (mixed / divisor[:, None]).to(out.dtype.element_ty),
            mask=stored,
        )
        return
    tl.store(
        partial + cell[:, None] * VALUE_DIM + value_dim,
        mixed / divisor[:, None],
        mask=stored,
    )
    weight = tl.where(any_visible, best + tl.log2(divisor), float("-inf"))
    tl.store(weights + cell, weight, mask=valid)


@triton.jit
def _combine(
    partial,  # [T, H, SPLITS, VALUE_DIM] fp32
    weights,  # [T, H, SPLITS] fp32
    out,  # [T, H, VALUE_DIM]
    tokens,  # [M] int32: indices among the T
    H: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    cell = tl.load(tokens + tl.program_id(0)).to(tl.int64) * H + tl.program_id(1)
    split, value_dim = tl.arange(0, SPLITS), tl.arange(0, VALUE_PAD)
    weight = tl.load(weights + cell * SPLITS + split)
    share = tl.exp2(weight - tl.max(weight, 0))
    share = share / tl.sum(share, 0)
    parts = tl.load(
        partial + (cell * SPLITS + split[:, None]) * VALUE_DIM + value_dim[None, :],
        mask=(value_dim < VALUE_DIM)[None, :],
        other=0.0,
    )
    mixed = tl.sum(parts * share[:, None], 0)
    tl.store(
        out + cell * VALUE_DIM + value_dim,
        mixed.to(out.dtype.element_ty),
        mask=value_dim < VALUE_DIM,
    )


class TritonBackend:
    """Attention backend for CUDA. `programs`: number of kernel programs that saturate the device;
    long contexts are split so that a launch has about as many."""

    def __init__(self, programs: int) -> None:
        self.programs = programs

    def bind(self, step: StepInputs, pool: KVPool) -> AttentionFn:
        return PagedAttention(step, pool, self.prepare(step, pool))

    def prepare(self, step: StepInputs, pool: KVPool) -> TritonAttention:
        return TritonAttention(step, pool, self.programs)


@dataclass(slots=True)
class KernelLaunch:
    """A launch of the kernels. The tiles of a launch have one size: a launch computes all
    single-token rows of the step, or all longer rows, cut into tiles of adjacent tokens."""

    tiles: Tensor
    """[N, 5] int32 on the device, one line per tile: row, index of the first token among the step's
    T, number of tokens, position of the first token, first position of the context."""
    tokens: Tensor
    """[M] int32 on the device: the tokens of all `tiles` one after the other, as indices into the
    tokens of the step."""
    tile_tokens: int
    """Maximum number of tokens (new ones, whose queries are computed) in a tile."""
    splits: int
    """Number of parts into which the context of each tile is split, to be computed in parallel; a
    power of two."""
    split_tokens: int


class TritonAttention:
    """Attention function of one step. Plans the kernel launches on first use, once for each
    distinct (window, query heads per KV head, KV heads)."""

    def __init__(self, step: StepInputs, pool: KVPool, programs: int) -> None:
        self.step, self.pool, self.programs = step, pool, programs
        self.plans: dict[tuple[int | None, int, int], list[KernelLaunch]] = {}
        longest = max(len(table) for table in step.page_tables)
        tables = np.zeros((len(step.page_tables), longest), dtype=np.int32)
        for row, table in enumerate(step.page_tables):
            tables[row, : len(table)] = table
        self.page_tables = upload(tables, step.tokens.device)

    def __call__(self, layer: int, query: Tensor, scale: float, window: int | None) -> Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        tokens, heads, key_dim = query.shape
        kv_heads, page, value_dim = values.shape[1:]
        group_size = heads // kv_heads
        if query.stride(2) != 1 or query.stride(1) != key_dim:
            query = query.contiguous()
        shape = (window, group_size, kv_heads)
        if shape not in self.plans:
            self.plans[shape] = plan(self.step, window, group_size, kv_heads, self.programs)
        out = query.new_empty(tokens, heads, value_dim)
        for launch in self.plans[shape]:
            splits = launch.splits
            cells = tokens if splits > 1 else 0
            partial = out.new_empty(cells, heads, splits, value_dim, dtype=torch.float32)
            weights = out.new_empty(cells, heads, splits, dtype=torch.float32)
            value_pad = max(16, triton.next_power_of_2(value_dim))
            _attend[(len(launch.tiles), kv_heads, splits)](
                query,
                keys,
                values,
                launch.tiles,
                self.page_tables,
                partial,
                weights,
                out,
                scale * LOG2_E,
                window or 0,
                query.stride(0),
                self.page_tables.stride(0),
                launch.split_tokens,
                H=heads,
                HK=kv_heads,
                GROUP_SIZE=group_size,
                KEY_DIM=key_dim,
                VALUE_DIM=value_dim,
                KEY_PAD=max(16, triton.next_power_of_2(key_dim)),
                VALUE_PAD=value_pad,
                ROWS=max(16, triton.next_power_of_2(launch.tile_tokens * group_size)),
                PAGE=page,
                BLOCK=BLOCK,
                SPLITS=splits,
            )
            if splits > 1:
                _combine[(len(launch.tokens), heads)](
                    partial,
                    weights,
                    out,
                    launch.tokens,
                    H=heads,
                    VALUE_DIM=value_dim,
                    VALUE_PAD=value_pad,
                    SPLITS=splits,
                )
        return out


def plan(
    step: StepInputs, window: int | None, group_size: int, kv_heads: int, programs: int
) -> list[KernelLaunch]:
    """Divide the rows of a step into tiles, and the tiles into launches: one for all single-token
    rows, one for all longer rows."""
    tokens_max = max(1, TILE_ROWS_MAX // group_size)
    single = step.counts == 1
    launches = []
    for rows, tile_tokens in ((np.flatnonzero(single), 1), (np.flatnonzero(~single), tokens_max)):
        if len(rows):
            tiles = _cut_tiles(step, rows, tile_tokens, window)
            launches.append(_plan_launch(tiles, tile_tokens, kv_heads, programs, step))
    return launches


def _cut_tiles(step: StepInputs, rows: Ints, tile_tokens: int, window: int | None) -> Ints:
    """Cut rows into tiles. Returns [N, 5]: row, index of the first token, number of tokens,
    position of the first token, first position of the context."""
    tiles_by_row = []
    for row in rows.tolist():
        offsets = np.arange(0, int(step.counts[row]), tile_tokens)
        tiles = np.empty((len(offsets), 5), dtype=np.int64)
        tiles[:, 0] = row
        tiles[:, 1] = step.row_offsets[row] + offsets
        tiles[:, 2] = np.minimum(tile_tokens, step.counts[row] - offsets)
        tiles[:, 3] = step.starts[row] + offsets
        tiles[:, 4] = 0 if window is None else np.maximum(tiles[:, 3] - window + 1, 0)
        tiles_by_row.append(tiles)
    return np.concatenate(tiles_by_row)


def _plan_launch(
    tiles: Ints, tile_tokens: int, kv_heads: int, programs: int, step: StepInputs
) -> KernelLaunch:
    longest = int((tiles[:, 3] + tiles[:, 2] - tiles[:, 4]).max())
    useful_splits = min(
        -(-programs // (len(tiles) * kv_heads)), -(-longest // SPLIT_TOKENS_MIN), SPLITS_MAX
    )
    splits = triton.next_power_of_2(max(1, useful_splits))
    blocks = -(-longest // (splits * BLOCK))
    tokens = np.concatenate([first + np.arange(count) for _, first, count, _, _ in tiles.tolist()])
    device = step.tokens.device
    return KernelLaunch(
        tiles=upload(tiles.astype(np.int32), device),
        tokens=upload(tokens.astype(np.int32), device),
        tile_tokens=tile_tokens,
        splits=splits,
        split_tokens=blocks * BLOCK,
    )

# pyright: basic, reportArgumentType=false
"""Paged attention by Triton kernels that read KV pages in place, for decode and prefill rows alike.

The G query heads that share a KV head are folded into query rows with the C tokens of a tile, so
that each key is read once:

    tile      C tokens of one row, one KV head: C * G query rows (padded to a power of 2)
    split     a stretch of a tile's context; the splits of a tile run in parallel (flash-decoding).
              A tile has as many as its context asks for, so that all programs of a launch have
              about the same work
    combine   sums the splits of a query row, each weighted by its share of the softmax

A program walks its split block by block. Blocks that all tokens of the tile see whole need no mask;
only those at the edges of the window and of the row do:

    context   |--- edge of the window ---|------ unmasked ------|--- up to the tokens' own ---|

Slots after a row's end in its last page may hold NaN, but masked loads read zeros instead. Sums are
kept in fp32. Sizes: T tokens, R rows, H query heads, Hk KV heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from continuo.engine.device.attention.backend import PagedAttention
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, PagedAttentionFn
from continuo.engine.device.step_inputs import Ints, StepInputs, upload

SPLIT_TOKENS_MIN = 512
"""Fewest context tokens of a split; with fewer, starting a kernel program costs more than its
memory reads."""
BLOCK = 64
"""Context tokens that a kernel program reads per iteration of its loop."""
NARROW_DIM_MAX = 256
"""Width of the widest heads that are read in blocks of BLOCK tokens. Wider ones are read in blocks
of half the size, without prefetching: otherwise a program needs more shared memory than it has."""
LOG2_E = 1.4426950408889634
TILE_ROWS_MAX = 64
"""Maximum number of query rows (tokens * query heads of a KV head) in one tile."""
COMBINE_BLOCK = tl.constexpr(16)
"""Splits that a program of `_combine` reads at once."""


@triton.jit
def _find_slots(
    table,
    base,
    end,
    head,
    HK: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Return the indices of the vectors of positions base to base + BLOCK, in a pool viewed as
    [page * head * slot, dim]. Each page is looked up once, if its size is a power of two. `base`:
    a multiple of BLOCK."""
    at = tl.arange(0, BLOCK)
    if PAGE % BLOCK == 0:
        page = tl.load(table + base // PAGE).to(tl.int64)
        slot = (page * HK + head) * PAGE + base % PAGE + at
    elif PAGE > 1 and BLOCK % PAGE == 0:
        number = tl.arange(0, BLOCK // PAGE)
        places = table + base // PAGE + number
        if IS_MASKED:
            pages = tl.load(places, mask=base + number * PAGE < end, other=0)
        else:
            pages = tl.load(places)
        first = (pages.to(tl.int64) * HK + head) * PAGE
        slot = tl.reshape(first[:, None] + tl.arange(0, PAGE)[None, :], [BLOCK])
    else:
        position = base + at
        if IS_MASKED:
            pages = tl.load(table + position // PAGE, mask=position < end, other=0)
        else:
            pages = tl.load(table + position // PAGE)
        slot = (pages.to(tl.int64) * HK + head) * PAGE + position % PAGE
    return slot


@triton.jit
def _fold_block(  # noqa: PLR0913 - a kernel takes sizes and strides apart from its tensors
    base,  # position of the first token of the block
    low,  # positions from `low` to `end` are read if IS_MASKED, else all of the block
    end,
    q,  # [ROWS, KEY_PAD]
    position,  # [ROWS] of each query row
    best,  # [ROWS] largest score so far, times log2(e), as are all scores
    total,  # [ROWS] sum of weights so far, relative to `best`
    mixed,  # [ROWS, VALUE_PAD] sum of weighted values so far
    keys,
    values,
    table,
    head,
    scale,
    softcap,
    window,
    HK: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Add the keys and values of a block to the sums of a tile."""
    slot = _find_slots(table, base, end, head, HK, PAGE, BLOCK, IS_MASKED)
    key_position = base + tl.arange(0, BLOCK)
    key_dim, value_dim = tl.arange(0, KEY_PAD), tl.arange(0, VALUE_PAD)
    key_at = keys + slot[None, :] * KEY_DIM + key_dim[:, None]
    value_at = values + slot[:, None] * VALUE_DIM + value_dim[None, :]
    inside = (key_position >= low) & (key_position < end)
    if IS_MASKED:
        k = tl.load(key_at, mask=inside[None, :] & (key_dim < KEY_DIM)[:, None], other=0.0)
        v = tl.load(value_at, mask=inside[:, None] & (value_dim < VALUE_DIM)[None, :], other=0.0)
    else:
        if KEY_DIM == KEY_PAD:
            k = tl.load(key_at)
        else:
            k = tl.load(key_at, mask=(key_dim < KEY_DIM)[:, None], other=0.0)
        if VALUE_DIM == VALUE_PAD:
            v = tl.load(value_at)
        else:
            v = tl.load(value_at, mask=(value_dim < VALUE_DIM)[None, :], other=0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if HAS_CAP:  # c * tanh(s), where tanh(s) = 2 sigmoid(2 s) - 1
        scores = softcap * (2 * tl.sigmoid(2 * scores) - 1)
    if IS_MASKED:
        visible = inside[None, :] & (key_position[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    shift = new_best
    if IS_MASKED:  # a query row may have seen no position yet
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
    rescale = tl.exp2(best - shift)
    share = tl.exp2(scores - shift[:, None])
    total = total * rescale + tl.sum(share, 1)
    mixed = mixed * rescale[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return new_best, total, mixed


@triton.jit(do_not_specialize=["window"])
def _attend(  # noqa: PLR0913 - a kernel takes sizes and strides apart from its tensors
    query,  # [T, H, KEY_DIM]
    keys,  # [page, Hk, PAGE, KEY_DIM]
    values,  # [page, Hk, PAGE, VALUE_DIM]
    items,  # [N, ITEM_FIELDS] int32: see ITEM_FIELDS
    tables,  # int32: the page tables of all rows, one after the other
    partial,  # [cells, H, VALUE_DIM] fp32: softmax-weighted sums, normalised per split
    weights,  # [cells, H] fp32: log2 of each split's sum of weights
    out,  # [T, H, VALUE_DIM]: receives the tiles that have one split; the others, by _combine
    sinks,  # [H]: see AttentionParams; unused without HAS_SINKS
    scale,  # of the scores, times log2(e); without log2(e) and divided by the soft cap if HAS_CAP
    softcap,  # bound of the scores, times log2(e); unused without HAS_CAP
    window,  # positions a token attends to, itself included; unused without HAS_WINDOW
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
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    item, head = items + tl.program_id(0) * FIELDS, tl.program_id(1)
    table = tables + tl.load(item)
    first, count, start = tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    begin, end = tl.load(item + 4), tl.load(item + 5)
    cell, is_first = tl.load(item + 6), tl.load(item + 7)

    query_row = tl.arange(0, ROWS)
    token = query_row // GROUP_SIZE
    query_head = head * GROUP_SIZE + query_row % GROUP_SIZE
    valid = token < count
    position = start + token
    key_dim, value_dim = tl.arange(0, KEY_PAD), tl.arange(0, VALUE_PAD)
    line = (first + token).to(tl.int64) * H + query_head
    q = tl.load(
        query + line[:, None] * KEY_DIM + key_dim[None, :],
        mask=valid[:, None] & (key_dim < KEY_DIM)[None, :],
        other=0.0,
    )
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - only HAS_SINKS is known when the kernel is compiled
        if is_first != 0:  # The first split counts the sink; it adds nothing to the weighted sum.
            sink = tl.load(sinks + query_head, mask=valid, other=0.0)
            best = sink.to(tl.float32) * 1.4426950408889634  # log2(e)
            total = tl.full([ROWS], 1.0, tl.float32)

    low = begin
    main_begin = begin
    if HAS_WINDOW:
        low = tl.maximum(start - window + 1, begin)  # the first token's window begins here
        hidden = tl.maximum(start + count - window - begin, 0)  # from a later token of the tile
        main_begin = begin + tl.cdiv(hidden, BLOCK) * BLOCK
        for base in range(begin, tl.minimum(main_begin, end), BLOCK):
            best, total, mixed = _fold_block(
                base, low, end, q, position, best, total, mixed, keys, values, table, head,
                scale, softcap, window, HK, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, PAGE, BLOCK,
                HAS_WINDOW, HAS_CAP, True,
            )  # fmt: skip
    main_end = begin + tl.maximum(tl.minimum(end, start + 1) - begin, 0) // BLOCK * BLOCK
    for base in range(main_begin, main_end, BLOCK):
        best, total, mixed = _fold_block(
            base, low, end, q, position, best, total, mixed, keys, values, table, head,
            scale, softcap, window, HK, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, PAGE, BLOCK,
            HAS_WINDOW, HAS_CAP, False,
        )  # fmt: skip
    for base in range(tl.maximum(main_begin, main_end), end, BLOCK):
        best, total, mixed = _fold_block(
            base, low, end, q, position, best, total, mixed, keys, values, table, head,
            scale, softcap, window, HK, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, PAGE, BLOCK,
            HAS_WINDOW, HAS_CAP, True,
        )  # fmt: skip

    any_visible = total > 0
    divisor = tl.where(any_visible, total, 1.0)
    mixed = mixed / divisor[:, None]
    stored = valid[:, None] & (value_dim < VALUE_DIM)[None, :]
    if cell < 0:
        out_at = out + line[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(out_at, mixed.to(out.dtype.element_ty), mask=stored)
    else:
        split_line = (cell + token).to(tl.int64) * H + query_head
        partial_at = partial + split_line[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(partial_at, mixed, mask=stored)
        weight = tl.where(any_visible, best + tl.log2(divisor), float("-inf"))
        tl.store(weights + split_line, weight, mask=valid)


@triton.jit
def _combine(
    partial,  # [cells, H, VALUE_DIM] fp32
    weights,  # [cells, H] fp32
    out,  # [T, H, VALUE_DIM]
    sums,  # [M, SUM_FIELDS] int32: see SUM_FIELDS
    H: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    FIELDS: tl.constexpr,
):
    entry, head = sums + tl.program_id(0) * FIELDS, tl.program_id(1)
    token, first = tl.load(entry).to(tl.int64), tl.load(entry + 1).to(tl.int64)
    stride, splits = tl.load(entry + 2), tl.load(entry + 3)
    value_dim = tl.arange(0, VALUE_PAD)
    is_value = value_dim < VALUE_DIM
    best = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([VALUE_PAD], tl.float32)
    for base in range(0, splits, COMBINE_BLOCK):
        split = base + tl.arange(0, COMBINE_BLOCK)
        inside = split < splits
        cell = (first + split * stride) * H + head
        weight = tl.load(weights + cell, mask=inside, other=float("-inf"))
        parts = tl.load(
            partial + cell[:, None] * VALUE_DIM + value_dim[None, :],
            mask=inside[:, None] & is_value[None, :],
            other=0.0,
        )
        new_best = tl.maximum(best, tl.max(weight, 0))
        # A token may see no position of a split, if the window hides all of them.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        rescale = tl.exp2(best - shift)
        share = tl.exp2(weight - shift)
        total = total * rescale + tl.sum(share, 0)
        mixed = mixed * rescale + tl.sum(parts * share[:, None], 0)
        best = new_best
    target = out + (token * H + head) * VALUE_DIM + value_dim
    stored = value_dim < VALUE_DIM * tl.minimum(splits, 1)  # an entry without splits is padding
    tl.store(target, (mixed / total).to(out.dtype.element_ty), mask=stored)


class LaunchOptions(NamedTuple):
    """How a kernel is compiled: warps of a program, and blocks that its loop prefetches."""

    num_warps: int
    num_stages: int


NARROW_OPTIONS = (LaunchOptions(4, 3), LaunchOptions(4, 2), LaunchOptions(8, 2))
WIDE_OPTIONS = (LaunchOptions(4, 1), LaunchOptions(8, 1))


class KernelVariant(NamedTuple):
    """The constants that distinguish a compiled `_attend` from another, except its options."""

    rows: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    page: int
    dtype: torch.dtype
    has_window: bool
    has_cap: bool
    has_sinks: bool


class TritonBackend:
    """Attention backend for CUDA. Each variant of the kernel is launched with the fastest of a few
    options, which its first launch measures."""

    def __init__(
        self, programs: int, measure: Callable[[Callable[[], None]], float] | None = None
    ) -> None:
        """`programs`: number of kernel programs that saturate the device; contexts are split so
        that a launch has about as many. `measure`: returns the time of a launch; None: the first
        options are taken unmeasured."""
        self.programs, self.measure = programs, measure
        self.options: dict[KernelVariant, LaunchOptions] = {}
        """The options of each variant that has been launched."""

    def bind(self, step: StepInputs, pool: KVPool) -> PagedAttentionFn:
        return PagedAttention(step, pool, self.prepare(step, pool))

    def prepare(self, step: StepInputs, pool: KVPool) -> TritonAttention:
        return TritonAttention(step, pool, self)

    def launch(self, variant: KernelVariant, launch: Callable[[LaunchOptions], None]) -> None:
        """Launch a variant with its options. The first launch measures all options that the device
        has the resources for; it repeats the same writes.

        Raises OutOfResources if the device cannot run the variant.
        """
        if variant not in self.options:
            self.options[variant] = self._find_options(variant, launch)
        launch(self.options[variant])

    def _find_options(
        self, variant: KernelVariant, launch: Callable[[LaunchOptions], None]
    ) -> LaunchOptions:
        options = WIDE_OPTIONS if is_wide(variant.key_dim, variant.value_dim) else NARROW_OPTIONS
        if self.measure is None:
            return options[0]
        times: dict[LaunchOptions, float] = {}
        refusal = None
        for each in options:
            try:
                times[each] = self.measure(lambda each=each: launch(each))
            except OutOfResources as error:
                refusal = error
        if not times:
            assert refusal is not None
            raise refusal
        return min(times, key=times.__getitem__)


MEASURED_LAUNCHES = 20


def measure_on_cuda(launch: Callable[[], None]) -> float:
    """Return the milliseconds of a launch, the first of which compiles the kernel."""
    launch()
    start, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(MEASURED_LAUNCHES):
        launch()
    done.record()
    done.synchronize()
    return start.elapsed_time(done) / MEASURED_LAUNCHES


def is_wide(key_dim: int, value_dim: int) -> bool:
    return triton.next_power_of_2(max(key_dim, value_dim)) > NARROW_DIM_MAX


ITEM_FIELDS = 8
"""Fields of the work of a program, for all its heads:

- first entry of the row's page table;
- index of the tile's first token among the step's T, number of its tokens, position of the first;
- first position of the split, and the one after its last;
- first cell of the split, one for each token (-1: it is the only split of its tile);
- whether it is the first split (0 or 1).
"""
SUM_FIELDS = 4
"""Fields of a token whose splits are combined: its index among the step's T; its cell of the first
split; cells from split to split; number of splits."""


class Plan(NamedTuple):
    """The work of the kernels for the rows of a step, on the host."""

    items: list[tuple[int, Ints]]
    """For each of the two launches of `_attend`, the maximum number of tokens of a tile, and items
    [N, ITEM_FIELDS]: first all single-token rows, then all longer rows. N may be 0."""
    sums: Ints
    """[M, SUM_FIELDS]"""
    cells: int
    """Number of (split, token) pairs of the tiles that have several splits."""


@dataclass(slots=True)
class StepPlan:
    """A `Plan` on the device, and the memory of its splits."""

    items: list[tuple[int, Tensor]]
    sums: Tensor
    partial: Tensor
    weights: Tensor


class TritonAttention:
    """Attention function of one step. Plans the kernel launches on first use, once for each
    distinct (group, window, query heads, shape of KV); uploads a plan together with the page tables
    of the group, unless they have been uploaded with another."""

    def __init__(self, step: StepInputs, pool: KVPool, backend: TritonBackend) -> None:
        self.step, self.pool, self.backend = step, pool, backend
        self.plans: dict[tuple[int, int | None, int, int, int], StepPlan] = {}
        self.page_tables: dict[int, Tensor] = {}

    def __call__(self, layer: int, query: Tensor, params: AttentionParams) -> Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        tokens, heads, key_dim = query.shape
        kv_heads, page, value_dim = values.shape[1:]
        group_size = heads // kv_heads
        group, softcap = self.pool.groups[layer], params.softcap
        block = BLOCK // 2 if is_wide(key_dim, value_dim) else BLOCK
        plan = self._find_plan(group, params.window, heads, values, block)
        query = query.contiguous()
        out = query.new_empty(tokens, heads, value_dim)
        key_pad, value_pad = (max(16, triton.next_power_of_2(x)) for x in (key_dim, value_dim))
        for tile_tokens, items in plan.items:
            if not len(items):
                continue
            rows = max(16, triton.next_power_of_2(tile_tokens * group_size))

            def launch(options: LaunchOptions, items: Tensor = items, rows: int = rows) -> None:
                _attend[(len(items) // ITEM_FIELDS, kv_heads)](
                    query,
                    keys,
                    values,
                    items,
                    self.page_tables[group],
                    plan.partial,
                    plan.weights,
                    out,
                    out if params.sinks is None else params.sinks,
                    params.scale * LOG2_E if softcap is None else params.scale / softcap,
                    (softcap or 0.0) * LOG2_E,
                    params.window or 0,
                    H=heads,
                    HK=kv_heads,
                    GROUP_SIZE=group_size,
                    KEY_DIM=key_dim,
                    VALUE_DIM=value_dim,
                    KEY_PAD=key_pad,
                    VALUE_PAD=value_pad,
                    ROWS=rows,
                    PAGE=page,
                    BLOCK=block,
                    HAS_WINDOW=params.window is not None,
                    HAS_CAP=softcap is not None,
                    HAS_SINKS=params.sinks is not None,
                    FIELDS=ITEM_FIELDS,
                    **options._asdict(),
                )

            variant = KernelVariant(
                *(rows, heads, kv_heads, key_dim, value_dim, page, query.dtype),
                has_window=params.window is not None,
                has_cap=softcap is not None,
                has_sinks=params.sinks is not None,
            )
            self.backend.launch(variant, launch)
        if len(plan.sums):
            _combine[(len(plan.sums) // SUM_FIELDS, heads)](
                plan.partial,
                plan.weights,
                out,
                plan.sums,
                H=heads,
                VALUE_DIM=value_dim,
                VALUE_PAD=value_pad,
                FIELDS=SUM_FIELDS,
            )
        return out

    def _find_plan(
        self, group: int, window: int | None, heads: int, values: Tensor, block: int
    ) -> StepPlan:
        """Return the plan of a kind of layers. `values`: the page pool of one of them."""
        kv_heads, _, value_dim = values.shape[1:]
        kind = group, window, heads, kv_heads, value_dim
        if kind not in self.plans:
            made = plan(
                self.step, group, window, heads // kv_heads, kv_heads, block, self.backend.programs
            )
            self.plans[kind] = self._upload(made, group, heads, value_dim)
        return self.plans[kind]

    def _upload(self, made: Plan, group: int, heads: int, value_dim: int) -> StepPlan:
        """Copy a plan to the device, and the page tables of the group with it if they are not there
        yet. Each part begins at a multiple of 16 bytes, since a kernel is compiled once more for
        pointers that do not."""
        parts = [items.ravel() for _, items in made.items] + [made.sums.ravel()]
        if group not in self.page_tables:
            parts.append(np.concatenate(self.step.page_tables[group]))
        device = self.step.tokens.device
        packed = upload(np.concatenate(parts).astype(np.int32), device)
        views = list(packed.split([len(part) for part in parts]))
        if group not in self.page_tables:
            self.page_tables[group] = views.pop()
        sums = views.pop()
        tile_tokens = [tokens for tokens, _ in made.items]
        return StepPlan(
            items=list(zip(tile_tokens, views, strict=True)),
            sums=sums,
            partial=torch.empty(made.cells, heads, value_dim, dtype=torch.float32, device=device),
            weights=torch.empty(made.cells, heads, dtype=torch.float32, device=device),
        )


def plan(
    step: StepInputs,
    group: int,
    window: int | None,
    group_size: int,
    kv_heads: int,
    block: int,
    programs: int,
) -> Plan:
    """Cut the rows of a step into tiles, and the tiles into splits of whole blocks. `group_size`:
    query heads of a KV head; `programs`: about how many programs a launch has at least, if the
    contexts are long enough."""
    lengths = np.array([len(table) for table in step.page_tables[group]], dtype=np.int64)
    tables = np.cumsum(lengths) - lengths
    is_single = step.counts == 1
    items, sums, cells = [], [], 0
    for rows, tile_tokens in (
        (np.flatnonzero(is_single), 1),
        (np.flatnonzero(~is_single), longest_tile(group_size)),
    ):
        tiles = _cut_tiles(step, rows, tile_tokens, window, block)
        parts = _split_tiles(tiles, block, max(1, programs // kv_heads), cells)
        row_tables = tables[parts.rows]
        items.append((tile_tokens, np.column_stack((row_tables, parts.items))))
        sums.append(parts.sums)
        cells += parts.cells
    return Plan(items, np.concatenate(sums), cells)


def longest_tile(group_size: int) -> int:
    """Return the maximum number of tokens of a tile. `group_size`: query heads of a KV head."""
    return max(1, TILE_ROWS_MAX // group_size)


class Tiles(NamedTuple):
    """N tiles, each field [N]."""

    rows: Ints
    first: Ints
    """Index of the first token among the step's T."""
    counts: Ints
    """Number of tokens."""
    starts: Ints
    """Position of the first token."""
    contexts: Ints
    """First position of the context, rounded down to a multiple of a block."""


def _cut_tiles(
    step: StepInputs, rows: Ints, tile_tokens: int, window: int | None, block: int
) -> Tiles:
    """Cut rows into tiles of at most `tile_tokens` tokens."""
    tile_rows, number = _enumerate_parts(-(-step.counts[rows] // tile_tokens))
    row, offset = rows[tile_rows], number * tile_tokens
    starts = step.starts[row] + offset
    contexts = np.zeros_like(starts)
    if window is not None:
        contexts = np.maximum(starts - window + 1, 0) // block * block
    counts = np.minimum(tile_tokens, step.counts[row] - offset)
    return Tiles(row, step.row_offsets[row] + offset, counts, starts, contexts)


class TileSplits(NamedTuple):
    rows: Ints
    """Row of each item."""
    items: Ints
    """[N, ITEM_FIELDS - 1]: the items without their page tables."""
    sums: Ints
    cells: int


def _split_tiles(tiles: Tiles, block: int, programs: int, first_cell: int) -> TileSplits:
    """Split the contexts of tiles so that no split has more than the average work of `programs`
    programs, and the splits of a tile differ by one block at most. The longest come first, since
    programs start in order. `first_cell`: number of cells that other tiles of the step use."""
    ends = tiles.starts + tiles.counts
    blocks = -(-(ends - tiles.contexts) // block)
    split_blocks = max(SPLIT_TOKENS_MIN // block, -(-int(blocks.sum()) // programs))
    splits = -(-blocks // split_blocks)
    cell_counts = np.where(splits > 1, splits * tiles.counts, 0)
    cells = first_cell + np.cumsum(cell_counts) - cell_counts
    tile, number = _enumerate_parts(splits)
    context, count = tiles.contexts[tile], tiles.counts[tile]
    begins = context + number * blocks[tile] // splits[tile] * block
    nexts = context + (number + 1) * blocks[tile] // splits[tile] * block
    split_ends = np.minimum(nexts, ends[tile])
    cell = np.where(splits[tile] > 1, cells[tile] + number * count, -1)
    fields = (tiles.first[tile], count, tiles.starts[tile], begins, split_ends, cell, number == 0)
    order = np.argsort(begins - split_ends, kind="stable")
    several = np.flatnonzero(splits > 1)
    summed, token = _enumerate_parts(tiles.counts[several])
    whole = several[summed]
    sums = (tiles.first[whole] + token, cells[whole] + token, tiles.counts[whole], splits[whole])
    return TileSplits(
        tiles.rows[tile][order],
        np.column_stack(fields)[order],
        np.column_stack(sums),
        int(cell_counts.sum()),
    )


def _enumerate_parts(counts: Ints) -> tuple[Ints, Ints]:
    """Number the parts of things that have `counts` parts each. Returns, for each part, the index
    of its thing, and its number within it."""
    thing = np.repeat(np.arange(len(counts)), counts)
    firsts = np.cumsum(counts) - counts
    return thing, np.arange(len(thing)) - firsts[thing]

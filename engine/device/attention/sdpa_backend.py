# pyright: basic
"""Paged attention by gathering pages and calling SDPA: the reference implementation, also used on
CPUs for models that the native decoder does not support.

Rows with equally many new tokens and about as much context are computed together, padded to the
longest. The query heads of one KV head are folded into query rows, so that each key is read once:

    query [n, C tokens, kv_heads, G, dim] -> [n, kv_heads, G * C, dim]

Slots after a row's end in its last page are unused and may hold NaN (blank, or left over from a
failed turn): they are cut off where a row is computed alone, and zeroed in the gathered copy where
they are padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device.attention.backend import PagedAttention
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, PagedAttentionFn
from continuo.engine.device.step_inputs import Ints, StepInputs, upload

FOLD_COUNT_MAX = 64
"""Maximum number of new tokens of a row whose G query heads per KV head are folded into one head
with G times as many query rows. A row with more new tokens is computed alone, and its keys are
expanded to all query heads as a view: the mask of folded query rows would be G times as large."""
PADDING_TOKENS_MAX = 512
"""Maximum padding of a group of rows, in context tokens. This much padding costs about as much as
another SDPA call."""
SCORES_MAX = 1 << 24
"""Maximum number of scores that are in memory at once, where attention with a soft cap or with
sinks, which SDPA does not support, is computed step by step."""
GROUP_BYTES_MAX = 1 << 20
"""Maximum size of the gathered keys of a group of several rows. A core's cache would evict part of
a larger copy before its use."""


class ReferenceBackend:
    def bind(self, step: StepInputs, pool: KVPool) -> PagedAttentionFn:
        return PagedAttention(step, pool, self.prepare(step, pool))

    def prepare(self, step: StepInputs, pool: KVPool) -> ReferenceAttention:
        return ReferenceAttention(step, pool)


class ReferenceAttention:
    """Attention function of one step. Divides the rows into groups on first use, once for each
    distinct attention window of a page group."""

    def __init__(self, step: StepInputs, pool: KVPool) -> None:
        self.step, self.pool = step, pool
        self.plans: dict[tuple[int, int | None], list[RowGroup]] = {}

    def __call__(self, layer: int, query: Tensor, params: AttentionParams) -> Tensor:
        window = params.window
        kind = self.pool.groups[layer], window
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        if kind not in self.plans:
            tables = self.step.page_tables[kind[0]]
            self.plans[kind] = plan(self.step, tables, keys, window, query.dtype)
        groups = self.plans[kind]
        if len(groups) == 1:
            return groups[0].attend(query, keys, values, params)
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        for group in groups:
            out[group.token_indices] = group.attend(
                query[group.token_indices], keys, values, params
            )
        return out


@dataclass
class RowGroup:
    """A group of n rows that are computed together: C new tokens each, which attend to at most L
    positions of gathered pages."""

    token_indices: Tensor | slice
    """[n * C] indices, among the step's T, of the tokens of the n rows."""
    pages: Tensor
    """[n, P] page numbers of each row, padded with the row's last page."""
    span: slice
    """Range of the L positions that are attended to, among the P * page_size gathered ones."""
    mask: Tensor | None
    """[n, 1, C, L]: 0 where a query attends to a position, else -inf. None: each query attends to
    all L positions if C is 1, otherwise to all positions up to its own."""
    padding: Tensor | None
    """[N, 2]: the N gathered slots that are padding, because they lie after the end of a row that
    is shorter than the longest of the group. Each is given as the row's index in the group, and the
    slot's index among the P * page_size gathered slots of that row. Their gathered keys and values
    are replaced by zeros. None: no padding."""

    def __post_init__(self) -> None:
        self.row_count = len(self.pages)
        self.gather_indices: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.folded_masks: dict[int, Tensor | None] = {}

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams
    ) -> Tensor:
        """Compute attention for the C new tokens of each of the n rows.

        query [n * C, heads, dim]; keys, values: the page pool of one layer. Returns
        [n * C, heads, value_dim]."""
        key, value = self._gather(keys), self._gather(values)  # [n, kv_heads, L, dim]
        tokens, heads, dim = query.shape
        count, kv_heads = tokens // self.row_count, keys.shape[1]
        group_size = heads // kv_heads
        sinks = params.sinks
        if count <= FOLD_COUNT_MAX:
            if sinks is not None:  # one for each query row
                sinks = sinks.repeat_interleave(count).view(kv_heads, -1, 1)
            if count == 1:
                query = query.reshape(self.row_count, kv_heads, group_size, dim)
                out = _attend(query, key, value, self.mask, params, sinks)
                return out.reshape(tokens, heads, -1)
        query = query.view(self.row_count, count, kv_heads, group_size, dim).permute(0, 2, 3, 1, 4)
        if count <= FOLD_COUNT_MAX:
            query = query.reshape(self.row_count, kv_heads, group_size * count, dim)
            out = _attend(query, key, value, self._folded_mask(group_size), params, sinks)
            out = out.view(self.row_count, kv_heads, group_size, count, -1)
        else:
            out = _attend(
                query[0],  # [kv_heads, group_size, C, dim]
                key[0].unsqueeze(1).expand(-1, group_size, -1, -1),
                value[0].unsqueeze(1).expand(-1, group_size, -1, -1),
                self.mask,
                params,
                None if sinks is None else sinks.view(kv_heads, group_size, 1, 1),
                is_causal=self.mask is None,
            ).unsqueeze(0)
        return out.permute(0, 3, 1, 2, 4).reshape(tokens, heads, -1)

    def _gather(self, pool: Tensor) -> Tensor:
        """Gather pages: [page, head, slot, dim] -> [n, head, L, dim], in one copy."""
        heads, slots, dim = pool.shape[1:]
        if heads not in self.gather_indices:
            self.gather_indices[heads] = self._gather_indices(heads, slots)
        blocks, padding = self.gather_indices[heads]
        copy = pool.view(-1, slots * dim).index_select(0, blocks)
        if padding is not None:
            copy.view(-1, dim).index_fill_(0, padding, 0.0)
        return copy.view(self.row_count, heads, -1, dim)[:, :, self.span]

    def _gather_indices(self, heads: int, slots: int) -> tuple[Tensor, Tensor | None]:
        """Return the indices of the (page, head) blocks to gather, and of the gathered vectors that
        are padding (None: no padding)."""
        head = torch.arange(heads, device=self.pages.device)
        blocks = (self.pages[:, None] * heads + head[:, None]).flatten()  # [n * heads * P]
        if self.padding is None:
            return blocks, None
        row, position = self.padding.unbind(1)
        table = row[:, None] * heads + head
        return blocks, (table * self.pages.shape[1] * slots + position[:, None]).flatten()

    def _folded_mask(self, group_size: int) -> Tensor | None:
        """Return the mask for folded query rows: the mask of the C tokens, repeated for each of
        `group_size` query heads. Returns None if no mask is needed."""
        if group_size not in self.folded_masks:
            self.folded_masks[group_size] = (
                None if self.mask is None else self.mask.repeat(1, 1, group_size, 1)
            )
        return self.folded_masks[group_size]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    params: AttentionParams,
    sinks: Tensor | None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Compute attention: query [n, H, Q, dim], key and value [n, H, L, dim] -> [n, H, Q, dim].

    `sinks`: those of `params` for each query row, in a shape that broadcasts to [n, H, Q, 1].
    `is_causal`: Q and L are equal, and a query attends to the positions up to its own.
    """
    # On an H200, torch 2.11's scaled_dot_product_attention gave wrong results in fp32 for a row of
    # 65 tokens with a mask; with its MATH backend they were right.
    is_masked_on_cuda = mask is not None and query.is_cuda
    if params.softcap is None and sinks is None and not is_masked_on_cuda:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=params.scale
        )
    rows, length = query.shape[-2], key.shape[-2]
    if is_causal:
        mask = query.new_full((rows, length), float("-inf")).triu_(1)
    block_rows = max(1, SCORES_MAX // (query.shape[0] * query.shape[1] * length))
    blocks = []
    for begin in range(0, rows, block_rows):
        block = slice(begin, begin + block_rows)
        scores = (query[..., block, :] @ key.transpose(-1, -2)).float() * params.scale
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        if mask is not None:
            scores += mask if mask.shape[-2] == 1 else mask[..., block, :]
        if sinks is not None:
            column = sinks if sinks.shape[-2] == 1 else sinks[..., block, :]
            scores = torch.cat((scores, column.expand(*scores.shape[:-1], 1)), -1)
        shares = scores.softmax(-1)[..., :length]
        blocks.append(shares.to(value.dtype) @ value)
    return torch.cat(blocks, -2)


def plan(
    step: StepInputs, tables: list[Ints], keys: Tensor, window: int | None, dtype: torch.dtype
) -> list[RowGroup]:
    """Divide the rows of a step into groups. `tables`: the page table of each row; `keys`: the page
    pool of one layer; `dtype`: dtype of the queries, and so of the masks."""
    ends, page_size = step.starts + step.counts, keys.shape[2]
    begins = np.zeros_like(ends)
    if window is not None:
        begins = np.maximum(step.starts - window + 1, 0) // page_size * page_size
    tokens_max = GROUP_BYTES_MAX // (keys.shape[1] * keys.shape[3] * keys.element_size())
    return [
        _build_group(step, tables, rows, begins[rows], ends[rows], page_size, window, dtype)
        for rows in _group_by_length(step.counts, ends - begins, tokens_max)
    ]


def _group_by_length(counts: Ints, lengths: Ints, tokens_max: int) -> list[Ints]:
    """Group row numbers by new tokens and context length, so that padding to the longest row of a
    group costs less than a separate call, and no group of several rows gathers more than
    `tokens_max` tokens."""
    groups: list[list[int]] = []
    padding = 0
    for row in np.lexsort((lengths, counts)).tolist():
        count, length = int(counts[row]), int(lengths[row])
        if groups and count <= FOLD_COUNT_MAX:
            group = groups[-1]
            padding += (length - int(lengths[group[-1]])) * len(group)
            fits = length * (len(group) + 1) <= tokens_max
            if counts[group[0]] == count and padding <= PADDING_TOKENS_MAX and fits:
                group.append(row)
                continue
        groups.append([row])
        padding = 0
    return [np.array(sorted(rows)) for rows in groups]


def _build_group(
    step: StepInputs,
    page_tables: list[Ints],
    rows: Ints,
    begins: Ints,
    ends: Ints,
    page_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> RowGroup:
    """Build the group of rows `rows`. begins, ends [n]: range of positions to gather for each row;
    `begins` are page boundaries."""
    device = step.tokens.device
    count = int(step.counts[rows[0]])
    lengths = ends - begins
    longest = int(lengths.max())
    alone = len(rows) == 1
    tables = np.empty((len(rows), -(-longest // page_size)), dtype=np.int64)
    for at, row in enumerate(rows):
        pages = page_tables[row][begins[at] // page_size : -(-ends[at] // page_size)]
        tables[at, : len(pages)] = pages
        tables[at, len(pages) :] = pages[-1]
    token_indices: Tensor | slice = slice(None)
    if len(rows) != len(step.counts):
        token_indices = upload((step.row_offsets[rows][:, None] + np.arange(count)).ravel(), device)
    begin = 0
    if alone and count == 1 and window is not None:
        begin = max(0, longest - window)
    padding = mask = None
    if not alone and int(lengths.min()) != longest:
        gathered = np.arange(tables.shape[1] * page_size)
        padding = upload(np.argwhere(gathered >= lengths[:, None]), device)
    has_past = int(step.starts[rows[0]]) > 0
    if not alone or window is not None or has_past or count <= FOLD_COUNT_MAX:
        visible = _compute_visibility(lengths, count, begin, longest, window)
        mask = None if visible.all() else _to_additive_mask(visible, dtype, device)
    return RowGroup(token_indices, upload(tables, device), slice(begin, longest), mask, padding)


def _compute_visibility(
    lengths: Ints, query_tokens: int, begin: int, end: int, window: int | None
) -> NDArray[np.bool_]:
    """Compute which keys each query attends to: [n, C, end - begin] booleans.

    Positions count from the beginning of each row's gathered pages.
    """
    key = np.arange(begin, end)
    query = (lengths[:, None] - query_tokens + np.arange(query_tokens))[:, :, None]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)


def _to_additive_mask(
    visible: NDArray[np.bool_], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Convert to [n, 1, C, L]: 0 where visible, else -inf."""
    hidden = upload(~visible, device)[:, None]
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, float("-inf"))

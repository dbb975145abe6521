"""Reference implementation of paged attention (fp64, one token at a time), and test batches."""

from __future__ import annotations

import math
import random
from array import array

import torch
from torch import Tensor

from continuo.engine.batch import Batch, BatchRow
from continuo.engine.device.attention.sdpa_backend import FOLD_COUNT_MAX
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, KVShape, LayerMemory

BATCH_SHAPES = {
    "decode, much alike": [(50, 1), (52, 1), (49, 1), (64, 1)],
    "decode, all the same": [(31, 1), (31, 1)],
    "decode, far apart": [(5, 1), (1000, 1), (3, 1), (1010, 1), (0, 1)],
    "appends": [(40, 7), (33, 7), (0, 7), (100, 3)],
    "cold prompts": [(0, FOLD_COUNT_MAX + 5), (0, FOLD_COUNT_MAX), (0, 2)],
    "all at once": [(10, 1), (0, 90), (70, 16), (12, 1), (30, FOLD_COUNT_MAX + 1), (700, 16)],
}


def make_batch(rows: list[tuple[int, int]], page_size: int) -> tuple[Batch, int]:
    """Make a batch from rows of (tokens in KV, new tokens), with pages in random order.

    Returns the batch and the number of pages that its KV pool must have.
    """
    tables = [-(-(start + count) // page_size) for start, count in rows]
    total = sum(tables) + 3
    free = list(range(total))
    random.Random(7).shuffle(free)
    batch_rows = []
    for (start, count), page_count in zip(rows, tables, strict=True):
        pages = array("i", [free.pop() for _ in range(page_count)])
        batch_rows.append(BatchRow(array("i", [0] * count), -1, start, pages, None))
    return Batch(0, batch_rows), total


def reference_attention(
    batch: Batch, pool: KVPool, query: Tensor, params: AttentionParams
) -> Tensor:
    """Compute attention of each token and head over its visible positions, in fp64.

    Returns a tensor [T, heads, value_dim].
    """
    out, token, size = [], 0, pool.page_size
    keys, values = pool.keys[0].double(), pool.values[0].double()
    share = query.shape[1] // keys.shape[1]
    for row in batch.rows:
        for position in range(row.start, row.start + row.count):
            first = 0 if params.window is None else max(0, position - params.window + 1)
            pages = torch.tensor([row.pages[p // size] for p in range(first, position + 1)])
            slots = torch.arange(first, position + 1) % size
            key = keys[pages, :, slots].repeat_interleave(share, 1)  # [L, heads, dim]
            value = values[pages, :, slots].repeat_interleave(share, 1)
            scores = torch.einsum("hd,lhd->hl", query[token].double(), key) * params.scale
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            weights = scores.exp()
            total = weights.sum(-1, keepdim=True)
            if params.sinks is not None:
                total = total + params.sinks.double().exp()[:, None]
            out.append(torch.einsum("hl,lhd->hd", weights / total, value))
            token += 1
    return torch.stack(out)


def filled_pool(made: Batch, pages: int, page_size: int, shape: KVShape, like: Tensor) -> KVPool:
    """Make a KV pool with random entries in the slots that batch `made` uses, and NaN in all
    others."""
    pool = KVPool([LayerMemory(shape)], pages, page_size, like)
    pool.keys[0].fill_(math.nan)
    pool.values[0].fill_(math.nan)
    for row in made.rows:
        for position in range(row.start + row.count):
            page, slot = row.pages[position // page_size], position % page_size
            pool.keys[0][page, :, slot] = torch.randn(shape.heads, shape.key_dim).to(like)
            pool.values[0][page, :, slot] = torch.randn(shape.heads, shape.value_dim).to(like)
    return pool

"""The KV pool: per layer one tensor of keys and one of values, `[page, kv_head, slot, dim]`.

Knows where a token's key and value go, not whose they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.device.models.decoder import KVShape
from engine.errors import ModelError

CPU_SHARE, CPU_BYTES = 0.25, 1 << 30
"""By default a pool takes this share of the free memory of a CPU machine, this much at most."""
CUDA_SHARE = 0.85


class KVPool:
    """Layers may differ in heads and dims; pages and slots are the same for all of them."""

    def __init__(self, shapes: list[KVShape], pages: int, page_size: int, like: Tensor) -> None:
        self.shapes, self.pages, self.page_size = shapes, pages, page_size
        self.keys = [like.new_zeros(pages, s.heads, page_size, s.key_dim) for s in shapes]
        self.values = [like.new_zeros(pages, s.heads, page_size, s.value_dim) for s in shapes]
        self._flat = [
            (keys.view(-1, shape.key_dim), values.view(-1, shape.value_dim))
            for keys, values, shape in zip(self.keys, self.values, shapes, strict=True)
        ]

    def lines(self, pages: Tensor, slots: Tensor, heads: int) -> Tensor:
        """pages, slots [T] -> [T, heads]: where a layer of that many heads keeps each token, as
        line numbers of the pool seen as [page * head * slot, dim]."""
        head = torch.arange(heads, device=pages.device)
        return (pages[:, None] * heads + head) * self.page_size + slots[:, None]

    def write(self, layer: int, lines: Tensor, key: Tensor, value: Tensor) -> None:
        """key, value [T, heads, dim] to `lines` [T, heads]."""
        keys, values = self._flat[layer]
        keys.index_put_((lines,), key)
        values.index_put_((lines,), value)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to), one after the other in the order given."""
        for run in _independent(copies):
            sources, targets = torch.tensor(run, device=self.keys[0].device).unbind(1)
            for pool in (*self.keys, *self.values):
                pool[targets] = pool[sources]


def _independent(copies: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Cut a sequence of copies into runs in which no copy reads or writes a page written before
    it in the same run, so that a run can be done in one operation."""
    runs: list[list[tuple[int, int]]] = []
    written: set[int] = set()
    for source, target in copies:
        if not runs or source in written or target in written:
            runs.append([])
            written = set()
        runs[-1].append((source, target))
        written.add(target)
    return runs


def bytes_per_token(shapes: list[KVShape], dtype: torch.dtype) -> int:
    return sum(s.heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize


def size(
    config: EngineConfig, token_bytes: int, limit: int, device: torch.device
) -> tuple[int, int]:
    """(pages, max_model_len). `limit` is the longest context of the model, in tokens.

    The pool always holds one session of full length: where `max_model_len` is given, the default
    pool grows to it, and a pool of a given size that is too small is refused; where it is not
    given, it is what the model, and then the pool, can hold.
    """
    asked = config.max_model_len
    if asked is not None and asked > limit:
        raise ModelError(f"max_model_len {asked} is more than the model's {limit} tokens")
    most = asked or limit
    page = config.block_size
    if config.num_gpu_blocks_override is not None:
        pages = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        pages = config.kv_cache_memory_bytes // (token_bytes * page)
    else:
        useful = _pages(most, page) * config.max_num_seqs
        pages = min(useful, _free_bytes(device) // (token_bytes * page))
        pages = max(pages, _pages(asked or 1, page))
    if pages < 1 or (asked is not None and pages < _pages(asked, page)):
        raise ModelError(
            f"a KV pool of {pages} pages of {page} tokens ({token_bytes} bytes each) "
            f"does not hold one session of max_model_len {asked or 1}"
        )
    return pages, min(most, pages * page)


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _free_bytes(device: torch.device) -> int:
    """Bytes that a pool may take when nobody has said how many."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return CPU_BYTES
    return min(CPU_BYTES, int(free * CPU_SHARE))

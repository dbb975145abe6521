# pyright: basic
"""The KV pool: per layer one tensor of keys and one of values, `[page, kv_head, slot, dim]`; and
the host tier beside it, of the same shape, in pinned memory where the device is a GPU.

Knows where a token's key and value go, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from continuo.engine.batch import Move
from continuo.engine.config import EngineConfig
from continuo.engine.device.models.llama_decoder import KVShape
from continuo.engine.device.step_inputs import upload
from continuo.engine.errors import ModelError

CPU_SHARE, CPU_BYTES = 0.25, 1 << 30
"""By default a pool takes this share of the free memory of a CPU machine, this much at most."""
CUDA_SHARE = 0.85
MEMINFO = Path("/proc/meminfo")


class KVPool:
    """Layers may differ in heads and dims; pages and slots are the same for all of them."""

    def __init__(
        self,
        shapes: list[KVShape],
        pages: int,
        page_size: int,
        like: Tensor,
        host_pages: int = 0,
    ) -> None:
        self.shapes, self.pages, self.page_size = shapes, pages, page_size
        self.keys = [like.new_zeros(pages, s.heads, page_size, s.key_dim) for s in shapes]
        self.values = [like.new_zeros(pages, s.heads, page_size, s.value_dim) for s in shapes]
        self._pool = [*self.keys, *self.values]
        pinned = like.device.type == "cuda" and host_pages > 0
        self._host = [
            torch.zeros((host_pages, *x.shape[1:]), dtype=x.dtype, pin_memory=pinned)
            for x in self._pool
        ]
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

    def move(self, moves: Sequence[Move]) -> None:
        """Copy whole pages, one after the other in the order given. On CUDA this only queues the
        copies, on the stream that the steps run on: nothing else ever touches the host's pages."""
        for run in _independent(moves):
            match run[0].kind:
                case "copy":
                    self._copy([m.source for m in run], [m.target for m in run])
                case "spill":
                    run.sort(key=lambda m: m.target)
                    self._spill([m.source for m in run], [m.target for m in run])
                case "load":
                    run.sort(key=lambda m: m.source)
                    self._load([m.source for m in run], [m.target for m in run])

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        read, written = self._places(sources), self._places(targets)
        for pool in self._pool:
            pool[written] = pool[read]

    def _spill(self, pages: list[int], slots: list[int]) -> None:
        """`slots` ascend, that neighbours are found."""
        read = self._places(pages)
        for pool, host in zip(self._pool, self._host, strict=True):
            block = pool[read]
            for first, slot, count in _stretches(slots):
                host[slot : slot + count].copy_(block[first : first + count], non_blocking=True)

    def _load(self, slots: list[int], pages: list[int]) -> None:
        """`slots` ascend."""
        written = self._places(pages)
        for pool, host in zip(self._pool, self._host, strict=True):
            block = pool.new_empty(len(slots), *pool.shape[1:])
            for first, slot, count in _stretches(slots):
                block[first : first + count].copy_(host[slot : slot + count], non_blocking=True)
            pool[written] = block

    def _places(self, pages: list[int]) -> Tensor:
        return upload(np.array(pages), self._pool[0].device)


def _stretches(slots: list[int]) -> list[tuple[int, int, int]]:
    """(index, slot, count) of each stretch of neighbours in `slots`: pinned memory is copied to and
    from without a wait only where it lies together."""
    found: list[tuple[int, int, int]] = []
    for index, slot in enumerate(slots):
        first, begin, count = found[-1] if found else (0, 0, 0)
        if found and slot == begin + count:
            found[-1] = (first, begin, count + 1)
        else:
            found.append((index, slot, 1))
    return found


def _independent(moves: Sequence[Move]) -> list[list[Move]]:
    """Cut a sequence of moves into runs of one kind in which none reads or writes a page written
    before it in the same run, so that a run can be done in one operation."""
    runs: list[list[Move]] = []
    written: set[int] = set()
    for move in moves:
        reads_written = move.kind == "copy" and move.source in written
        if not runs or runs[-1][0].kind != move.kind or reads_written or move.target in written:
            runs.append([])
            written = set()
        runs[-1].append(move)
        written.add(move.target)
    return runs


def host_pages(config: EngineConfig, token_bytes: int) -> int:
    """Pages of a host tier of `kv_offloading_size` GiB."""
    if config.kv_offloading_size < 0:
        raise ModelError(
            f"kv_offloading_size is {config.kv_offloading_size}; it must be at least 0"
        )
    return int(config.kv_offloading_size * (1 << 30)) // (token_bytes * config.block_size)


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
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return CPU_BYTES
    return min(CPU_BYTES, int(free * CPU_SHARE))

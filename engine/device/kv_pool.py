# pyright: basic
"""The KV pool: per layer one tensor of keys and one of values, `[page, kv_head, slot, dim]`; and
the host tier beside it, of the same shape, in pinned memory where the device is a GPU.

Knows where a token's key and value go, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from continuo.engine.batch import PageMove
from continuo.engine.device.model import KVShape
from continuo.engine.device.step_inputs import upload


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
        self._tensors = [*self.keys, *self.values]
        pinned = like.device.type == "cuda" and host_pages > 0
        self._host_tensors = [
            torch.zeros((host_pages, *x.shape[1:]), dtype=x.dtype, pin_memory=pinned)
            for x in self._tensors
        ]
        self._flat = [
            (keys.view(-1, shape.key_dim), values.view(-1, shape.value_dim))
            for keys, values, shape in zip(self.keys, self.values, shapes, strict=True)
        ]

    def map_slots(self, pages: Tensor, slots: Tensor, heads: int) -> Tensor:
        """pages, slots [T] -> [T, heads]: where a layer of that many heads keeps each token, as
        line numbers of the pool seen as [page * head * slot, dim]."""
        head = torch.arange(heads, device=pages.device)
        return (pages[:, None] * heads + head) * self.page_size + slots[:, None]

    def write(self, layer: int, slot_mapping: Tensor, key: Tensor, value: Tensor) -> None:
        """key, value [T, heads, dim] to `lines` [T, heads]."""
        keys, values = self._flat[layer]
        keys.index_put_((slot_mapping,), key)
        values.index_put_((slot_mapping,), value)

    def move(self, moves: Sequence[PageMove]) -> None:
        """Copy whole pages, one after the other in the order given. On CUDA this only queues the
        copies, on the stream that the steps run on: nothing else ever touches the host's pages."""
        for run in _split_into_independent_runs(moves):
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
        read, written = self._upload_pages(sources), self._upload_pages(targets)
        for pool in self._tensors:
            pool[written] = pool[read]

    def _spill(self, pages: list[int], slots: list[int]) -> None:
        """`slots` ascend, that neighbours are found."""
        read = self._upload_pages(pages)
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool[read]
            for first, slot, count in _find_contiguous_runs(slots):
                host[slot : slot + count].copy_(block[first : first + count], non_blocking=True)

    def _load(self, slots: list[int], pages: list[int]) -> None:
        """`slots` ascend."""
        written = self._upload_pages(pages)
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool.new_empty(len(slots), *pool.shape[1:])
            for first, slot, count in _find_contiguous_runs(slots):
                block[first : first + count].copy_(host[slot : slot + count], non_blocking=True)
            pool[written] = block

    def _upload_pages(self, pages: list[int]) -> Tensor:
        return upload(np.array(pages), self._tensors[0].device)


def _find_contiguous_runs(slots: list[int]) -> list[tuple[int, int, int]]:
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


def _split_into_independent_runs(moves: Sequence[PageMove]) -> list[list[PageMove]]:
    """Cut a sequence of moves into runs of one kind in which none reads or writes a page written
    before it in the same run, so that a run can be done in one operation."""
    runs: list[list[PageMove]] = []
    written: set[int] = set()
    for move in moves:
        reads_written = move.kind == "copy" and move.source in written
        if not runs or runs[-1][0].kind != move.kind or reads_written or move.target in written:
            runs.append([])
            written = set()
        runs[-1].append(move)
        written.add(move.target)
    return runs

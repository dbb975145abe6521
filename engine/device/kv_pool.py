# pyright: basic
"""The KV memory of the device, `[page, kv_head, slot, dim]` per layer for keys and for values, and
the host tier of the same layout, in pinned memory where the device is a GPU.

Maps tokens to slots in pages; `engine/core/cache` decides which sequence owns a page.
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
    """The tensors of KV pages. Layers may differ in heads and dims; a token has the same page and
    slot in all of them."""

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
        """Map slots to the indices of their vectors: pages, slots [T] -> [T, heads], for a layer
        with `heads` KV heads.

        The indices refer to the pool viewed as [page * head * slot, dim].
        """
        head = torch.arange(heads, device=pages.device)
        return (pages[:, None] * heads + head) * self.page_size + slots[:, None]

    def write(self, layer: int, slot_mapping: Tensor, key: Tensor, value: Tensor) -> None:
        """Write key, value [T, heads, dim] to the vectors at `slot_mapping` [T, heads], as returned
        by `map_slots`."""
        keys, values = self._flat[layer]
        keys.index_put_((slot_mapping,), key)
        values.index_put_((slot_mapping,), value)

    def move(self, moves: Sequence[PageMove]) -> None:
        """Copy whole pages, in the order given.

        On CUDA the copies are only enqueued, on the stream that the steps run on. No other stream
        accesses the pages of the host tier.
        """
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
        source_pages, target_pages = self._upload_pages(sources), self._upload_pages(targets)
        for pool in self._tensors:
            pool[target_pages] = pool[source_pages]

    def _spill(self, pages: list[int], slots: list[int]) -> None:
        """Copy each device page of `pages` to the page of the host tier at the same index of
        `slots`. `slots` must be in ascending order, so that adjacent host pages are copied
        together."""
        source_pages = self._upload_pages(pages)
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool[source_pages]
            for first, slot, count in _find_contiguous_runs(slots):
                host[slot : slot + count].copy_(block[first : first + count], non_blocking=True)

    def _load(self, slots: list[int], pages: list[int]) -> None:
        """Copy each page of the host tier in `slots` to the device page at the same index of
        `pages`. `slots` must be in ascending order, so that adjacent host pages are copied
        together."""
        target_pages = self._upload_pages(pages)
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool.new_empty(len(slots), *pool.shape[1:])
            for first, slot, count in _find_contiguous_runs(slots):
                block[first : first + count].copy_(host[slot : slot + count], non_blocking=True)
            pool[target_pages] = block

    def _upload_pages(self, pages: list[int]) -> Tensor:
        return upload(np.array(pages), self._tensors[0].device)


def _find_contiguous_runs(slots: list[int]) -> list[tuple[int, int, int]]:
    """Find the runs of adjacent host pages in `slots`, which are page numbers of the host tier.
    Returns (index of the first in `slots`, first host page, count) of each run. Only copies of
    contiguous pinned memory are asynchronous."""
    runs: list[tuple[int, int, int]] = []
    for index, slot in enumerate(slots):
        first, begin, count = runs[-1] if runs else (0, 0, 0)
        if runs and slot == begin + count:
            runs[-1] = (first, begin, count + 1)
        else:
            runs.append((index, slot, 1))
    return runs


def _split_into_independent_runs(moves: Sequence[PageMove]) -> list[list[PageMove]]:
    """Split moves into runs that can each be copied in one operation: all moves of a run have one
    kind, and none reads or writes a page that an earlier move of the run writes."""
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

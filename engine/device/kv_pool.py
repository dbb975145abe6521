# pyright: basic
"""The memory of the device: KV pages, `[page, kv_head, slot, dim]` per layer for keys and for
values, and slots for recurrent states, `[slot, *shape]` per layer; and the host tier of the same
layout, in pinned memory where the device is a GPU.

Layers with one kind of memory share a group, whose pages are numbered together:

    group 0      the layers that attend to all positions
    group n      the layers that attend to the last `windows[n - 1].window` positions
    STATE_POOL   the recurrent layers

Maps tokens to slots in pages; `engine/core/cache` decides which sequence owns a page.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from continuo.engine.batch import FULL_GROUP, STATE_POOL, PageMove, WindowGroup
from continuo.engine.byte_units import format_bytes
from continuo.engine.device.model import KVShape, LayerMemory
from continuo.engine.device.step_inputs import upload


class KVPool:
    """The tensors of KV pages and recurrent states. Layers may differ in heads and dims; a token
    has the same page and slot in all layers of a group."""

    def __init__(
        self,
        memory: Sequence[LayerMemory],
        pages: int,
        page_size: int,
        like: Tensor,
        host_pages: int = 0,
        windows: tuple[WindowGroup, ...] = (),
        state_slots: int = 0,
        host_state_slots: int = 0,
    ) -> None:
        """Args:
        memory: what each layer remembers. A layer whose window is not one of `windows` belongs to
            the full group.
        pages: pages of the full group on the device.
        page_size: tokens of a page, the same in all groups.
        like: a tensor whose dtype and device those of the KV are; its content is not used.
        host_pages: pages of the full group in host memory; 0: none can be spilled.
        windows: the window groups, numbered from 1 in this order; group 0 is the full group.
        state_slots: slots of recurrent states on the device; 0 for a model without recurrent
            layers.
        host_state_slots: the same in host memory; 0: no state can be spilled.
        """
        self.page_size, self.windows = page_size, windows
        self.page_counts = [pages, *(group.pages for group in windows)]
        group_of_window = {group.window: n for n, group in enumerate(windows, 1)}
        self.groups = [group_of_window.get(layer.window or 0, FULL_GROUP) for layer in memory]
        """Group of each layer."""
        self.shapes = [layer.kv or NO_KV for layer in memory]
        """Shape of the KV of one token, by layer; NO_KV for a layer without attention."""
        self.keys, self.values = [], []
        for shape, group in zip(self.shapes, self.groups, strict=True):
            room = self.page_counts[group] if shape.heads else 0, shape.heads, page_size
            self.keys.append(_zeros(like, *room, shape.key_dim))
            self.values.append(_zeros(like, *room, shape.value_dim))
        self.states = [
            tuple(_zeros(like, state_slots, *x.shape, dtype=x.dtype) for x in layer.state)
            for layer in memory
        ]
        """Tensors of the recurrent state, [slot, *shape], by layer; empty for other layers."""
        host_counts = [host_pages, *(group.host_pages for group in windows)]
        self._movable = {
            group: MovableTensors(
                [
                    tensor
                    for pool in (self.keys, self.values)
                    for tensor, shape, other in zip(pool, self.shapes, self.groups, strict=True)
                    if other == group and shape.heads
                ],
                host_counts[group],
            )
            for group in range(len(host_counts))
        }
        self._movable[STATE_POOL] = MovableTensors(
            [tensor for layer in self.states for tensor in layer], host_state_slots
        )
        self._flat = [
            (keys.view(-1, shape.key_dim), values.view(-1, shape.value_dim))
            if shape.heads
            else (keys, values)
            for keys, values, shape in zip(self.keys, self.values, self.shapes, strict=True)
        ]

    @property
    def main_memory_bytes(self) -> int:
        """Size of what the pool and its host tier take of the main memory once all of it is used;
        at first, none of it is (see `_zeros`)."""
        return sum(group.main_memory_bytes for group in self._movable.values())

    def describe(self) -> str:
        """Return the sizes of all pools, for the log."""
        names = ["full", *(f"window of {group.window}" for group in self.windows)]
        counts = [f"{count:,} pages" for count in self.page_counts]
        slots = next((len(layer[0]) for layer in self.states if layer), 0)
        pools = [*zip(names, counts, range(len(names)), strict=True)]
        pools.append(("state", f"{slots:,} slots", STATE_POOL))
        return ", ".join(
            f"{name} {count} ({format_bytes(self._movable[group].size_bytes)})"
            for name, count, group in pools
            if self._movable[group].size_bytes
        )

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
        """Copy whole pages and state slots, or blank them, in the order given.

        On CUDA the moves are only enqueued, on the stream that the steps run on. No other stream
        accesses the pages of the host tier.
        """
        for run in _split_into_independent_runs(moves):
            tensors = self._movable[run[0].group]
            match run[0].kind:
                case "copy":
                    tensors.copy([m.source for m in run], [m.target for m in run])
                case "spill":
                    run.sort(key=lambda m: m.target)
                    tensors.spill([m.source for m in run], [m.target for m in run])
                case "load":
                    run.sort(key=lambda m: m.source)
                    tensors.load([m.source for m in run], [m.target for m in run])
                case "blank":
                    tensors.blank([m.target for m in run])


NO_KV = KVShape(0, 0, 0)


class MovableTensors:
    """The tensors of one group, indexed by page (or state slot) in their first dimension, and their
    copies in the host tier."""

    def __init__(self, tensors: list[Tensor], host_pages: int) -> None:
        self._tensors = tensors
        pinned = bool(tensors) and tensors[0].device.type == "cuda" and host_pages > 0
        self._host_tensors = [
            torch.zeros((host_pages, *x.shape[1:]), dtype=x.dtype, pin_memory=True)
            if pinned
            else _zeros(x, host_pages, *x.shape[1:])
            for x in tensors
        ]

    @property
    def size_bytes(self) -> int:
        return sum(x.nbytes for x in self._tensors)

    @property
    def main_memory_bytes(self) -> int:
        tensors = (*self._tensors, *self._host_tensors)
        return sum(x.nbytes for x in tensors if x.device.type == "cpu")

    def copy(self, sources: list[int], targets: list[int]) -> None:
        for pool in self._tensors:
            source_pages, target_pages = _upload_pages(sources, pool), _upload_pages(targets, pool)
            pool[target_pages] = pool[source_pages]

    def spill(self, pages: list[int], slots: list[int]) -> None:
        """Copy each device page of `pages` to the page of the host tier at the same index of
        `slots`. `slots` must be in ascending order, so that adjacent host pages are copied
        together."""
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool[_upload_pages(pages, pool)]
            for first, slot, count in _find_contiguous_runs(slots):
                host[slot : slot + count].copy_(block[first : first + count], non_blocking=True)

    def load(self, slots: list[int], pages: list[int]) -> None:
        """Copy each page of the host tier in `slots` to the device page at the same index of
        `pages`. `slots` must be in ascending order, so that adjacent host pages are copied
        together."""
        for pool, host in zip(self._tensors, self._host_tensors, strict=True):
            block = pool.new_empty(len(slots), *pool.shape[1:])
            for first, slot, count in _find_contiguous_runs(slots):
                block[first : first + count].copy_(host[slot : slot + count], non_blocking=True)
            pool[_upload_pages(pages, pool)] = block

    def blank(self, pages: list[int]) -> None:
        """Fill pages with NaN, which every dtype of KV and of recurrent states has.

        If a token attends to such a position, its logits are not finite, so that its turn fails.
        NaN * 0 is NaN, but no backend multiplies what lies behind the end of a row in its last
        page: it is cut off, replaced by zeros, or not loaded. SDPA multiplies by 0 what lies before
        a window in its first page; that has been computed, because a page is written from its
        first slot on.
        """
        for pool in self._tensors:
            pool.index_fill_(0, _upload_pages(pages, pool), math.nan)


def _zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Create a tensor of zeros with the dtype (unless `dtype` is given) and device of `like`.

    On a CPU its memory is anonymous: the system takes a page of it, filled with zeros, when it is
    first written. Pages of the pool are allocated from its beginning, so its end may stay free.
    Raises OSError or OverflowError if the address space does not hold it.
    """
    dtype = dtype or like.dtype
    size_bytes = math.prod(shape) * dtype.itemsize
    if like.device.type != "cpu" or not size_bytes:
        return like.new_zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _upload_pages(pages: list[int], like: Tensor) -> Tensor:
    return upload(np.array(pages), like.device)


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
    kind and group, and none reads or writes a page that an earlier move of the run writes."""
    runs: list[list[PageMove]] = []
    written: set[int] = set()
    for move in moves:
        reads_written = move.kind == "copy" and move.source in written
        if (
            not runs
            or (runs[-1][0].kind, runs[-1][0].group) != (move.kind, move.group)
            or reads_written
            or move.target in written
        ):
            runs.append([])
            written = set()
        runs[-1].append(move)
        written.add(move.target)
    return runs

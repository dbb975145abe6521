# pyright: basic
"""A Batch turned into the index tensors of one step, once, for all layers. Knows no model.

numpy does the arithmetic on the host; each array crosses to the device once, without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continuo.engine.batch import Batch

Ints = NDArray[np.int64]


@dataclass(slots=True)
class StepInputs:
    """T tokens of R rows, side by side; S of the rows are sampled.

    rows      |--- row 0 ---|- row 1 -|r2|
    tokens    0           first[1]    first[2]
    """

    tokens: Tensor
    """[T] int64 on the device; zero where a row is fed."""
    positions: Tensor
    """[T] int64 on the device."""
    pages: Tensor
    """[T] int64 on the device: the page each token is written to, and ..."""
    slots: Tensor
    """[T] int64 on the device: ... the slot in it."""
    row_offsets: Ints
    """[R + 1] where each row's tokens begin."""
    starts: Ints
    """[R] tokens of each row already in KV."""
    counts: Ints
    """[R] tokens of each row in this step."""
    page_tables: list[Ints]
    """R page tables, each covering [0, start + count)."""
    logit_indices: Tensor | None
    """[S] int64 on the device: the token whose logits are wanted; None: all T, in order."""
    sampled_rows: list[int]
    """The S rows that draw an id."""
    fed_tokens: list[tuple[int, int]]
    """(token, row of the previous batch) for each fed row."""


def build_inputs(
    batch: Batch, page_size: int, device: torch.device, vocab: int | None = None
) -> StepInputs:
    """The step of a batch. Trusts the batch, what is wrong in it being a bug of the scheduler, but
    for ids: one outside the vocabulary would take a GPU away from all sessions. `vocab` None: they
    are known to be right. Raises IndexError."""
    rows = batch.rows
    starts = np.array([row.start for row in rows], dtype=np.int64)
    counts = np.array([row.count for row in rows], dtype=np.int64)
    first = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=first[1:])
    total = int(first[-1])
    tables = [np.array(row.pages, dtype=np.int64) for row in rows]
    packed = np.zeros((4, total), dtype=np.int64)  # tokens, positions, pages, slots
    packed[1] = np.arange(total) - np.repeat(first[:-1] - starts, counts)
    packed[3] = packed[1] % page_size
    fed: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        here = slice(int(first[number]), int(first[number + 1]))
        packed[2, here] = tables[number][packed[1, here] // page_size]
        if row.feed_row >= 0:
            fed.append((int(first[number]), row.feed_row))
        else:
            packed[0, here] = row.ids
    if vocab is not None:
        _check_ids(packed[0], first, vocab)
    sampled = [number for number, row in enumerate(rows) if row.sample is not None]
    last = None
    if len(sampled) != total:
        last = upload(first[1:][sampled] - 1, device)
    tokens, positions, pages, slots = upload(packed, device).unbind(0)
    return StepInputs(
        tokens, positions, pages, slots, first, starts, counts, tables, last, sampled, fed
    )


def _check_ids(tokens: Ints, row_offsets: Ints, vocab: int) -> None:
    if tokens.min(initial=0) >= 0 and tokens.max(initial=0) < vocab:
        return
    at = int(np.flatnonzero((tokens < 0) | (tokens >= vocab))[0])
    row = int(np.searchsorted(row_offsets, at, side="right")) - 1
    raise IndexError(f"row {row} of the step: id {tokens[at]} is outside the vocabulary of {vocab}")


def upload(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A host array on the device. On CUDA through pinned memory, without waiting for the copy:
    torch keeps the pinned block until the copy has run."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor

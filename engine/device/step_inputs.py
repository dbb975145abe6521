# pyright: basic
"""Convert a `Batch` to the index tensors of one step, built once for all layers.

The arithmetic runs in numpy on the host; each array is copied to the device once, asynchronously.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continuo.engine.batch import NO_STATE, Batch, WindowTable

Ints = NDArray[np.int64]


@dataclass(slots=True)
class StepInputs:
    """The T tokens of R rows, concatenated; from S of them an id is drawn.

    rows      |--- row 0 ---|- row 1 -|r2|
    tokens    0             |         row_offsets[2]
                            row_offsets[1]
    """

    tokens: Tensor
    """[T] int64 ids on the device; 0 for fed tokens until the runner copies the drawn ids there.
    With `into`, the T tokens are followed by padding, here and in the next three fields."""
    positions: Tensor
    """[T] int64 on the device: the index of each token in its sequence."""
    pages: list[Tensor]
    """By group, [T] int64 on the device: the page that each token's KV is written to."""
    slots: Tensor
    """[T] int64 on the device: the slot, within the page in `pages`, that each token's KV is
    written to."""
    row_offsets: Ints
    """[R + 1] index of each row's first token among the T; the last entry is T."""
    starts: Ints
    """[R] position of each row's first token: the number of earlier tokens, which have KV."""
    counts: Ints
    """[R] number of tokens of each row in this step."""
    page_tables: list[list[Ints]]
    """By group, R page tables, each indexed by position // page_size up to the end of its row. In a
    window group, the entries before the window of the row's first token are 0 and never used."""
    state_slots: tuple[Tensor, Tensor] | None
    """[R] int64 on the device: the state slots that the rows read (-1 at position 0) and write.
    None: the rows have no state."""
    logit_indices: Tensor | None
    """[S] int64 on the device: indices of the tokens whose logits are computed; None: all T, in
    order."""
    sampled_rows: list[int]
    """The row of each of the S tokens. A row without drafts occurs at most once."""
    fed_tokens: list[tuple[int, int]]
    """For each fed row, whose input id the previous step draws: (index of its token among the T,
    row of the previous batch that draws the id)."""


def build_inputs(
    batch: Batch,
    page_size: int,
    device: torch.device,
    vocab: int | None = None,
    into: Tensor | None = None,
) -> StepInputs:
    """Build the inputs of a batch. `into` [3 + groups, at least T] int64: where tokens, positions,
    slots and pages are put on the device; tokens of padding have page -1, which is never written.

    Raises IndexError for an id outside [0, vocab), which would make a GPU unusable for all
    sessions; `vocab` None: the ids are known to be valid. The rest of the batch is trusted, because
    an error in it would be a bug of the scheduler.
    """
    rows = batch.rows
    starts = np.array([row.start for row in rows], dtype=np.int64)
    counts = np.array([row.count for row in rows], dtype=np.int64)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    groups = [[np.array(row.pages, dtype=np.int64) for row in rows]]
    for group in range(len(rows[0].windows)):
        groups.append([_dense_table(row.windows[group]) for row in rows])
    width = total if into is None else into.shape[1]
    packed = np.zeros((3 + len(groups), width), dtype=np.int64)  # tokens, positions, slots, pages…
    packed[1, :total] = np.arange(total) - np.repeat(offsets[:-1] - starts, counts)
    packed[2] = packed[1] % page_size
    packed[3:, total:] = -1
    fed: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        span = slice(int(offsets[number]), int(offsets[number + 1]))
        for group, tables in enumerate(groups):
            packed[3 + group, span] = tables[number][packed[1, span] // page_size]
        if row.feed_row >= 0:
            fed.append((int(offsets[number]), row.feed_row))
        else:
            packed[0, span] = row.ids
    if vocab is not None:
        _check_ids(packed[0], offsets, vocab)
    sampled: list[int] = []
    sampled_tokens: list[int] = []
    for number, (row, end) in enumerate(zip(rows, offsets[1:].tolist(), strict=True)):
        draws = len(row.samples)
        sampled += [number] * draws
        sampled_tokens += range(end - draws, end)
    logit_indices = None
    if len(sampled) != total:
        logit_indices = upload(np.array(sampled_tokens, dtype=np.int64), device)
    tokens, positions, slots, *pages = upload(packed, device, into).unbind(0)
    state_slots = None
    if rows[0].slots is not NO_STATE:
        slot_pairs = np.array([row.slots for row in rows], dtype=np.int64).T
        read, write = upload(slot_pairs, device).unbind(0)
        state_slots = read, write
    return StepInputs(
        tokens=tokens,
        positions=positions,
        pages=pages,
        slots=slots,
        row_offsets=offsets,
        starts=starts,
        counts=counts,
        page_tables=groups,
        state_slots=state_slots,
        logit_indices=logit_indices,
        sampled_rows=sampled,
        fed_tokens=fed,
    )


def _dense_table(table: WindowTable) -> Ints:
    dense = np.zeros(table.first + len(table.pages), dtype=np.int64)
    dense[table.first :] = table.pages
    return dense


def _check_ids(tokens: Ints, row_offsets: Ints, vocab: int) -> None:
    if tokens.min(initial=0) >= 0 and tokens.max(initial=0) < vocab:
        return
    at = int(np.flatnonzero((tokens < 0) | (tokens >= vocab))[0])
    row = int(np.searchsorted(row_offsets, at, side="right")) - 1
    raise IndexError(f"row {row} of the step: id {tokens[at]} is outside the vocabulary of {vocab}")


def upload(array: NDArray[np.generic], device: torch.device, into: Tensor | None = None) -> Tensor:
    """Copy a host array to the device: into the tensor `into`, or a new one. Returns it.

    On CUDA the copy is asynchronous, through pinned memory; torch keeps the pinned block until the
    copy has run.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    if into is not None:
        return into.copy_(tensor, non_blocking=True)
    return tensor.to(device, non_blocking=True)

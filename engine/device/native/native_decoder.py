# pyright: basic
"""A whole step of a `Decoder` in C, without torch operations and without holding the GIL.

The rows (StepRow) and attention tiles (AttentionTile) of a step are packed by hand.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections.abc import Sequence
from ctypes import Structure, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from continuo.engine.batch import BatchRow
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models.decoder import Decoder
from continuo.engine.device.native.compile import load_library
from continuo.engine.device.native.native_model import (
    NativeModel,
    define_struct,
    fields_of_type,
    find_attention,
    is_supported,
)
from continuo.engine.device.native.native_sampling import PackedSampling

TILE_QUERIES = 32
"""Maximum number of queries in an attention tile. A tile has queries of one row for one KV head:
the query heads of that KV head, for each of some adjacent tokens."""


_Step = define_struct(
    "Step",
    ("rows", c_void_p),
    *fields_of_type("row_count threads", c_int64),
    *fields_of_type("logits drawn_ids", c_void_p),
    ("is_greedy", c_int64),
    *fields_of_type("sampling scratch tiles", c_void_p),
    *fields_of_type("tokens tile_count", c_int64),
)
TILE_FIELDS = 2
"""Number of int64 fields of the C struct AttentionTile, for the size of the array of tiles."""


@dataclass(slots=True)
class NativeStep:
    """A step in the memory layout of the C code."""

    rows: Sequence[BatchRow]
    threads: int
    packed_rows: array[int]
    """The StepRow of each row, as int64 fields."""
    fed_ids: array[int]
    """[R] int32: the input id of each fed row, which the previous step draws; set by the runner
    before the step begins. Unused for other rows."""
    drawn_ids: array[int]
    """[S] int64, set by the C code: the ids of all rows that draw, and after each of their
    drafts."""
    token_count: int
    tile_count: int


class NativeDecoder:
    """Runs steps of a model in C, one at a time."""

    def __init__(self, model: NativeModel, library: ctypes.CDLL, threads: int) -> None:
        """`threads`: maximum number of threads for a step."""
        self._model = model
        self._group_size = model.heads // model.kv_heads
        self.vocab_size = model.vocab_size
        self._buffers: dict[str, Tensor] = {}
        library.steps_open.restype = c_void_p
        steps = c_void_p(library.steps_open(byref(model.struct), c_int64(threads)))
        if not steps:
            raise MemoryError("no memory for a step of the model")
        library.steps_begin.restype = c_int64
        self._begin = functools.partial(library.steps_begin, steps)
        library.steps_finish.restype = c_int64
        self._finish = functools.partial(library.steps_finish, steps)
        weakref.finalize(self, library.steps_close, steps)
        library.steps_run_until_near_end.restype = c_double
        self._run_until_near_end = functools.partial(library.steps_run_until_near_end, steps)
        self._discard = functools.partial(library.steps_discard, steps)
        self._allow_draws = functools.partial(library.steps_allow_draws, steps)
        self._in_flight: tuple[NativeStep, Structure] | None = None
        """The step in flight, kept alive because the C code reads and writes its memory."""
        self._sampling: PackedSampling | None = None
        """How the ids of the step in flight are drawn, kept alive for the same reason."""

    @classmethod
    def try_create(cls, model: object, pool: KVPool, threads: int) -> NativeDecoder | None:
        """Create a decoder.

        Returns None if the model or its sizes are not supported, or if the C code cannot be
        compiled.
        """
        if not is_supported(model, pool):
            return None
        assert isinstance(model, Decoder)
        bf16 = pool.keys[0].dtype is torch.bfloat16
        library = load_library(
            "decoder.c",
            f"-DDIM={find_attention(model.shape).head_dim}",
            f"-DPAGE_SIZE={pool.page_size}",
            f"-DBF16={int(bf16)}",
            f"-DGROUPS={len(pool.page_counts)}",
        )
        return None if library is None else cls(NativeModel(model, pool, library), library, threads)

    def pack(self, rows: Sequence[BatchRow], threads: int) -> NativeStep:
        """Pack these rows into a step; the previous step may still be in flight.

        The rows must not change until the new step has finished.
        """
        packed, fed_ids = array("q"), array("i", bytes(4 * len(rows)))
        fed_address = fed_ids.buffer_info()[0]
        tokens = tiles = sampled = 0
        for row in rows:
            (ids, count), (pages, _) = row.ids.buffer_info(), row.pages.buffer_info()
            if not count:
                ids, count = fed_address, 1
            draws = len(row.samples)
            packed.extend((ids, count, row.start, draws, 0, *row.slots, pages, 0))
            for first, window_pages in row.windows:
                packed.extend((window_pages.buffer_info()[0], first))
            fed_address += 4
            tokens += count
            sampled += draws
            tiles += -(-count * self._group_size // TILE_QUERIES)
        drawn_ids = array("q", bytes(8 * sampled))
        return NativeStep(rows, threads, packed, fed_ids, drawn_ids, tokens, tiles)

    def begin(self, step: NativeStep, *, is_greedy: bool = True) -> None:
        """Start a step and return at once; the decoder's threads start to compute it. Unless
        `is_greedy`, they wait for `allow_draws` before they draw the ids.

        The previous step must have finished. Raises IndexError, before anything starts, for a row
        with an id outside the vocabulary, or a position or page out of bounds.
        """
        sampled = len(step.drawn_ids)
        model = self._model
        floats = step.token_count * model.scratch_floats_per_token + model.scratch_floats
        scratch = self._buffer("scratch", floats, torch.float32)
        logits = self._buffer("logits", sampled * self.vocab_size, torch.float32)
        tiles = self._buffer("tiles", step.tile_count * TILE_FIELDS, torch.int64)
        struct = _Step(
            step.packed_rows.buffer_info()[0],
            len(step.rows),
            step.threads,
            logits.data_ptr(),
            step.drawn_ids.buffer_info()[0],
            is_greedy,
            None,
            scratch.data_ptr(),
            tiles.data_ptr(),
        )
        outside = self._begin(byref(struct))
        if outside >= 0:
            raise IndexError(
                f"row {outside} of the step: {self._describe_violation(step, outside)}"
            )
        self._in_flight = (step, struct)

    def _describe_violation(self, step: NativeStep, row_index: int) -> str:
        """Describe the out-of-bounds value of a row."""
        row = step.rows[row_index]
        ids = row.ids or step.fed_ids[row_index : row_index + 1]
        for id in ids:
            if not 0 <= id < self.vocab_size:
                return f"id {id} is outside the vocabulary of {self.vocab_size}"
        end = row.start + row.count
        if row.start < 0 or end > self._model.positions:
            return (
                f"positions {row.start} to {end} are outside the {self._model.positions} of the "
                f"model"
            )
        slots = self._model.state_slots
        read, write = row.slots
        if slots and not (0 <= write < slots and read < slots and (row.start == 0 or read >= 0)):
            return f"its state slots {read} and {write} are not two of the {slots}"
        pools = " and ".join(map(str, self._model.page_counts))
        return f"one of its pages is outside the pool of {pools}"

    def allow_draws(self, sampling: PackedSampling) -> None:
        """Set how the ids of the step in flight are drawn."""
        assert self._in_flight is not None
        self._sampling = sampling
        self._allow_draws(c_void_p(sampling.addresses.buffer_info()[0]))

    def run_until_near_end(self, seconds: float | None = None) -> float:
        """Compute the step in flight on this thread and on the decoder's threads, until none of
        them reads the KV pool any more; or, if that is earlier, until the first piece of an
        operation of the model that ends after `seconds`. Returns the share of the step that is
        computed, above 0; 1 if it is near its end."""
        limit_ns = -1 if seconds is None else int(seconds * 1e9)
        return self._run_until_near_end(c_int64(limit_ns))

    def finish(self) -> tuple[list[int], float]:
        """Compute the rest of the step in flight, together with the decoder's threads.

        Returns the S drawn ids (-1 where a logit is NaN or +inf, or all are -inf), and how long ago
        the step ended, in seconds: the decoder's threads may have ended it before this call.
        """
        assert self._in_flight is not None
        ago_ns = self._finish()
        step, _ = self._in_flight
        self._in_flight = None
        return step.drawn_ids.tolist(), ago_ns / 1e9

    def discard(self) -> None:
        """Cancel the rest of the step in flight."""
        self._discard()
        self._in_flight = None

    def read_logits(self, count: int) -> Tensor:
        """Return the logits [S, vocab] fp32 of the last step, where S is `count`.

        The next step overwrites them.
        """
        return self._buffers["logits"][: count * self.vocab_size].view(count, self.vocab_size)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name`, reused from step to step, with at least `size` elements."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype)
        return buffer

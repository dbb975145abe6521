# pyright: basic
"""A whole step of a `LlamaDecoder` in C, without torch operations and without holding the GIL.

The structs mirror those of decoder.c and paged_attention.h field by field; the rows (StepRow) and
attention tiles (AttentionTile) of a step are packed by hand.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.batch import BatchRow
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models import layers
from continuo.engine.device.models.llama_decoder import LlamaDecoder
from continuo.engine.device.native.compile import load_library

SIZE_MULTIPLE = 16
"""Hidden, intermediate, head and vocabulary sizes must be multiples of this for the C code."""
TILE_QUERIES = 32
"""Maximum number of queries in an attention tile. A tile has queries of one row for one KV head:
the query heads of that KV head, for each of some adjacent tokens."""


def _define_struct(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": fields})


def _fields_of_type(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


_Linear = _define_struct(
    "Linear", *_fields_of_type("weight bias", c_void_p), *_fields_of_type("in out", c_int64)
)
_LayerKV = _define_struct(
    "LayerKV",
    *_fields_of_type("keys values", c_void_p),
    *_fields_of_type("kv_heads group window", c_int64),
    ("scale", c_float),
)
_Layer = _define_struct(
    "Layer",
    *_fields_of_type("qkv out gate_up down", _Linear),
    *_fields_of_type("input_norm post_attention_norm qk_norm", c_void_p),
    ("kv", _LayerKV),
    ("has_rope", c_int64),
)
_Model = _define_struct(
    "Model",
    *_fields_of_type("layers hidden inner heads kv_heads", c_int64),
    ("layer", POINTER(_Layer)),
    *_fields_of_type("embedding norm rope", c_void_p),
    ("head", _Linear),
    *_fields_of_type("positions pages", c_int64),
    ("eps", c_float),
)
_Step = _define_struct(
    "Step",
    ("rows", c_void_p),
    *_fields_of_type("row_count threads", c_int64),
    *_fields_of_type("logits argmax_ids scratch tiles", c_void_p),
    *_fields_of_type("tokens tile_count", c_int64),
)
ROW_FIELDS = 6
"""Number of int64 fields of the C struct StepRow; the C code sets the last one."""
TILE_FIELDS = 2
"""Number of int64 fields of the C struct AttentionTile, for the size of the array of tiles."""


@dataclass(slots=True)
class NativeStep:
    """A step in the memory layout of the C code."""

    rows: Sequence[BatchRow]
    threads: int
    packed_rows: array[int]
    """[R * ROW_FIELDS] int64: one StepRow per row."""
    fed_ids: array[int]
    """[R] int32: the input id of each fed row, which the previous step draws; set by the runner
    before the step begins. Unused for other rows."""
    argmax_ids: array[int]
    """[S] int64, set by the C code: the likeliest id of each sampled row."""
    token_count: int
    tile_count: int


class NativeDecoder:
    """Runs steps of a model in C, one at a time. The C structs point to the tensors of the model
    and of its KV pool, which must not move in memory."""

    def __init__(
        self, model: LlamaDecoder, pool: KVPool, library: ctypes.CDLL, threads: int
    ) -> None:
        """`threads`: maximum number of threads for a step."""
        self._group_size = model.shape.heads // model.shape.kv_heads
        self._vocab_size = model.shape.vocab_size
        self._position_count, self._page_count = len(model.rope_table), pool.pages
        shape = model.shape
        self._scratch_floats_per_token = (
            3 * shape.hidden
            + 2 * shape.head_dim * (shape.heads + shape.kv_heads)
            + 3 * shape.intermediate
        )
        self._keepalive: list[Any] = [model, pool]
        self._buffers: dict[str, Tensor] = {}
        structs = [self._build_layer(layer, model, pool) for layer in model.layers]
        layer_array = (_Layer * len(structs))(*structs)
        self._keepalive.append(layer_array)
        self._model = _Model(
            len(structs),
            shape.hidden,
            shape.intermediate,
            shape.heads,
            shape.kv_heads,
            layer_array,
            model.embedding.data_ptr(),
            self._fp32_address(model.norm.weight),
            model.rope_table.data_ptr(),
            _Linear(model.head.data_ptr(), None, shape.hidden, shape.vocab_size),
            self._position_count,
            self._page_count,
            shape.eps,
        )
        library.steps_open.restype = c_void_p
        steps = c_void_p(library.steps_open(byref(self._model), c_int64(threads)))
        if not steps:
            raise MemoryError("no memory for a step of the model")
        library.steps_begin.restype = c_int64
        self._begin = functools.partial(library.steps_begin, steps)
        library.steps_finish.restype = c_int64
        self._finish = functools.partial(library.steps_finish, steps)
        weakref.finalize(self, library.steps_close, steps)
        self.run_until_near_end = functools.partial(library.steps_run_until_near_end, steps)
        """Compute the step in flight on this thread and on the decoder's threads, until none of
        them reads the KV pool any more."""
        self._discard = functools.partial(library.steps_discard, steps)
        self._in_flight: tuple[NativeStep, Structure] | None = None
        """The step in flight, kept alive because the C code reads and writes its memory."""

    @classmethod
    def try_create(cls, model: object, pool: KVPool, threads: int) -> NativeDecoder | None:
        """Create a decoder.

        Returns None if the model or its sizes are not supported, or if the C code cannot be
        compiled.
        """
        if not isinstance(model, LlamaDecoder) or not _is_supported(model, pool):
            return None
        bf16 = pool.keys[0].dtype is torch.bfloat16
        library = load_library(
            "decoder.c",
            f"-DDIM={model.shape.head_dim}",
            f"-DPAGE_SIZE={pool.page_size}",
            f"-DBF16={int(bf16)}",
        )
        return None if library is None else cls(model, pool, library, threads)

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
            wants_logits = row.sample is not None
            packed.extend((ids, pages, count, row.start, wants_logits, 0))
            fed_address += 4
            tokens += count
            sampled += wants_logits
            tiles += -(-count * self._group_size // TILE_QUERIES)
        argmax_ids = array("q", bytes(8 * sampled))
        return NativeStep(rows, threads, packed, fed_ids, argmax_ids, tokens, tiles)

    def begin(self, step: NativeStep) -> None:
        """Start a step and return at once; the decoder's threads start to compute it.

        The previous step must have finished. Raises IndexError, before anything starts, for a row
        with an id outside the vocabulary, or a position or page out of bounds.
        """
        sampled = len(step.argmax_ids)
        scratch = self._buffer(
            "scratch", step.token_count * self._scratch_floats_per_token, torch.float32
        )
        logits = self._buffer("logits", sampled * self._vocab_size, torch.float32)
        tiles = self._buffer("tiles", step.tile_count * TILE_FIELDS, torch.int64)
        struct = _Step(
            step.packed_rows.buffer_info()[0],
            len(step.rows),
            step.threads,
            logits.data_ptr(),
            step.argmax_ids.buffer_info()[0],
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
            if not 0 <= id < self._vocab_size:
                return f"id {id} is outside the vocabulary of {self._vocab_size}"
        end = row.start + row.count
        if row.start < 0 or end > self._position_count:
            return (
                f"positions {row.start} to {end} are outside the {self._position_count} of the "
                f"model"
            )
        return f"one of its pages is outside the pool of {self._page_count}"

    def finish(self) -> tuple[list[int], float]:
        """Compute the rest of the step in flight, together with the decoder's threads.

        Returns the likeliest id of each of the S sampled rows (-1 where a logit is NaN or +inf, or
        all are -inf), and how long ago the step ended, in seconds: the decoder's threads may have
        ended it before this call.
        """
        assert self._in_flight is not None
        ago_ns = self._finish()
        step, _ = self._in_flight
        self._in_flight = None
        return step.argmax_ids.tolist(), ago_ns / 1e9

    def discard(self) -> None:
        """Cancel the rest of the step in flight."""
        self._discard()
        self._in_flight = None

    def read_logits(self, count: int) -> Tensor:
        """Return the logits [S, vocab] fp32 of the last step, where S is `count`.

        The next step overwrites them.
        """
        return self._buffers["logits"][: count * self._vocab_size].view(count, self._vocab_size)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name`, reused from step to step, with at least `size` elements."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype)
        return buffer

    def _build_layer(
        self, layer: layers.DecoderLayer, model: LlamaDecoder, pool: KVPool
    ) -> Structure:
        attention, mlp, shape = layer.attention, layer.mlp, model.shape
        return _Layer(
            *(self._build_linear(x) for x in (attention.qkv, attention.out, mlp.gate_up, mlp.down)),
            self._fp32_address(layer.input_norm.weight),
            self._fp32_address(layer.post_attention_norm.weight),
            self._fp32_address(attention.norm_weight),
            _LayerKV(
                pool.keys[attention.layer].data_ptr(),
                pool.values[attention.layer].data_ptr(),
                shape.kv_heads,
                self._group_size,
                attention.window or 0,
                attention.scale,
            ),
            attention.has_rope,
        )

    def _build_linear(self, linear: layers.Linear) -> Structure:
        out, size_in = linear.weight.shape
        return _Linear(linear.weight.data_ptr(), self._fp32_address(linear.bias), size_in, out)

    def _fp32_address(self, weight: Tensor | None) -> int | None:
        """Copy a weight to fp32 and return the address of the copy; None if there is no weight."""
        if weight is None:
            return None
        self._keepalive.append(weight.float().contiguous())
        return self._keepalive[-1].data_ptr()


def _is_supported(model: LlamaDecoder, pool: KVPool) -> bool:
    shape = model.shape
    sizes = (shape.hidden, shape.intermediate, shape.head_dim, shape.vocab_size)
    return (
        pool.keys[0].device.type == "cpu"
        and pool.keys[0].dtype in (torch.float32, torch.bfloat16)
        and all(size % SIZE_MULTIPLE == 0 for size in sizes)
        and all(layer.mlp.act is F.silu for layer in model.layers)
    )

# pyright: basic
"""A Decoder's step in our C: no operation of torch's, and no GIL, between its layers.

The structs are those of decoder.c and paged_attention.h, field by field; a step's rows and units
are packed by hand.
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
from continuo.engine.device.native import compile

SIZE_MULTIPLE = 16
"""All sizes are multiples of it."""
TILE_QUERIES = 32
"""Of one KV head, computed together: its query heads times tokens."""


def _define_struct(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": fields})


def _fields_of_type(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


_Linear = _define_struct(
    "Linear", *_fields_of_type("weight bias", c_void_p), *_fields_of_type("in out", c_int64)
)
_LayerKV = _define_struct(
    "Pool",
    *_fields_of_type("keys values", c_void_p),
    *_fields_of_type("kv_heads group window", c_int64),
    ("scale", c_float),
)
_Layer = _define_struct(
    "Layer",
    *_fields_of_type("qkv mixed gate_up down", _Linear),
    *_fields_of_type("before after qk_norm", c_void_p),
    ("pool", _LayerKV),
    ("rotated", c_int64),
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
    "Work",
    ("rows", c_void_p),
    *_fields_of_type("count threads", c_int64),
    *_fields_of_type("logits likely scratch units", c_void_p),
    *_fields_of_type("tokens unit_count", c_int64),
)
ROW_FIELDS = 6
"""int64 fields of a Row, the last of them filled in by the C."""
TILE_FIELDS = 2


@dataclass(slots=True)
class NativeStep:
    """What the C wants to know of a step."""

    rows: Sequence[BatchRow]
    threads: int
    packed_rows: array[int]
    fed_ids: array[int]
    """[R] int32: the one id of each row that has none of its own, to be filled in."""
    argmax_ids: array[int]
    """[S] int64, an answer."""
    token_count: int
    tile_count: int


class NativeDecoder:
    """The model and its pool as the C sees them; neither moves in memory."""

    def __init__(
        self, model: LlamaDecoder, pool: KVPool, library: ctypes.CDLL, threads: int
    ) -> None:
        """`threads`: the most that a step may take."""
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
        of = [self._build_layer(layer, model, pool) for layer in model.layers]
        made = (_Layer * len(of))(*of)
        self._keepalive.append(made)
        self._model = _Model(
            len(of),
            shape.hidden,
            shape.intermediate,
            shape.heads,
            shape.kv_heads,
            made,
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
        """Works at the step begun, if others do too, and leaves the end of it to them."""
        self._discard = functools.partial(library.steps_discard, steps)
        self._in_flight: tuple[NativeStep, Structure] | None = None
        """What the C reads and writes until it is finished."""

    @classmethod
    def try_create(cls, model: object, pool: KVPool, threads: int) -> NativeDecoder | None:
        """None if it cannot be: another kind of model, sizes the C does not do, no compiler."""
        if not isinstance(model, LlamaDecoder) or not _is_supported(model, pool):
            return None
        bf16 = pool.keys[0].dtype is torch.bfloat16
        library = compile.load_library(
            "decoder.c",
            f"-DDIM={model.shape.head_dim}",
            f"-DPAGE_SIZE={pool.page_size}",
            f"-DBF16={int(bf16)}",
        )
        return None if library is None else cls(model, pool, library, threads)

    def pack(self, rows: Sequence[BatchRow], threads: int) -> NativeStep:
        """A step of these rows, which writes their keys and values to the pool; another one may
        still be under way. The rows must not change until it is over."""
        packed, fed = array("q"), array("i", bytes(4 * len(rows)))
        given = fed.buffer_info()[0]
        tokens = units = wanted = 0
        for row in rows:
            (ids, count), (pages, _) = row.ids.buffer_info(), row.pages.buffer_info()
            if not count:
                ids, count = given, 1
            wants = row.sample is not None
            packed.extend((ids, pages, count, row.start, wants, 0))
            given += 4
            tokens += count
            wanted += wants
            units += -(-count * self._group_size // TILE_QUERIES)
        return NativeStep(rows, threads, packed, fed, array("q", bytes(8 * wanted)), tokens, units)

    def begin(self, step: NativeStep) -> None:
        """Returns at once; threads other than this one begin. The step before must be finished.
        Raises IndexError, before anything begins, for a row with an id outside the vocabulary, or
        one that lies outside the context or the pool."""
        wanted = len(step.argmax_ids)
        scratch = self._buffer(
            "scratch", step.token_count * self._scratch_floats_per_token, torch.float32
        )
        logits = self._buffer("logits", wanted * self._vocab_size, torch.float32)
        place = self._buffer("units", step.tile_count * TILE_FIELDS, torch.int64)
        work = _Step(
            step.packed_rows.buffer_info()[0],
            len(step.rows),
            step.threads,
            logits.data_ptr(),
            step.argmax_ids.buffer_info()[0],
            scratch.data_ptr(),
            place.data_ptr(),
        )
        outside = self._begin(byref(work))
        if outside >= 0:
            raise IndexError(
                f"row {outside} of the step: {self._describe_violation(step, outside)}"
            )
        self._in_flight = (step, work)

    def _describe_violation(self, step: NativeStep, row_index: int) -> str:
        """Describe the value of this row that is out of bounds."""
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
        return f"a page of it is outside the pool of {self._page_count}"

    def finish(self) -> tuple[list[int], float]:
        """Works at it, too. Returns, of the S rows that draw, the likeliest id; -1 where a logit is
        NaN or +inf, or all are -inf; and how many seconds ago it was done."""
        assert self._in_flight is not None
        ago_ns = self._finish()
        step, _ = self._in_flight
        self._in_flight = None
        return step.argmax_ids.tolist(), ago_ns / 1e9

    def discard(self) -> None:
        """Ends the step begun, done or not."""
        self._discard()
        self._in_flight = None

    def read_logits(self, count: int) -> Tensor:
        """[S, vocab] fp32 of the last step, `wanted` being S. Overwritten by the next one."""
        return self._buffers["logits"][: count * self._vocab_size].view(count, self._vocab_size)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """At least that long, and the same from step to step."""
        found = self._buffers.get(name)
        if found is None or len(found) < size:
            found = self._buffers[name] = torch.empty(size, dtype=dtype)
        return found

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
        """Where a copy of it in fp32 lies."""
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

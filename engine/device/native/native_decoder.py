# pyright: basic
"""A Decoder's step in our C: no operation of torch's, and no GIL, between its layers.

The structs are those of decoder.c and attention.h, field by field; a step's rows and units are
packed by hand.
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

from continuo.engine.batch import Row
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models import layers
from continuo.engine.device.models.llama_decoder import Decoder
from continuo.engine.device.native import compile

MULTIPLE = 16
"""All sizes are multiples of it."""
QUERIES = 32
"""Of one KV head, computed together: its query heads times tokens."""


def _struct(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": fields})


def _all(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


_Linear = _struct("Linear", *_all("weight bias", c_void_p), *_all("in out", c_int64))
_Pool = _struct(
    "Pool",
    *_all("keys values", c_void_p),
    *_all("kv_heads group window", c_int64),
    ("scale", c_float),
)
_Layer = _struct(
    "Layer",
    *_all("qkv mixed gate_up down", _Linear),
    *_all("before after qk_norm", c_void_p),
    ("pool", _Pool),
    ("rotated", c_int64),
)
_Model = _struct(
    "Model",
    *_all("layers hidden inner heads kv_heads", c_int64),
    ("layer", POINTER(_Layer)),
    *_all("embedding norm rope", c_void_p),
    ("head", _Linear),
    *_all("positions pages", c_int64),
    ("eps", c_float),
)
_Work = _struct(
    "Work",
    ("rows", c_void_p),
    *_all("count threads", c_int64),
    *_all("logits likely scratch units", c_void_p),
    *_all("tokens unit_count", c_int64),
)
ROW = 6
"""int64 fields of a Row, the last of them filled in by the C."""
UNIT = 2


@dataclass(slots=True)
class Step:
    """What the C wants to know of a step."""

    rows: Sequence[Row]
    threads: int
    packed: array[int]
    fed: array[int]
    """[R] int32: the one id of each row that has none of its own, to be filled in."""
    likely: array[int]
    """[S] int64, an answer."""
    tokens: int
    units: int


class NativeDecoder:
    """The model and its pool as the C sees them; neither moves in memory."""

    def __init__(self, model: Decoder, pool: KVPool, library: ctypes.CDLL, threads: int) -> None:
        """`threads`: the most that a step may take."""
        self._group = model.shape.heads // model.shape.kv_heads
        self._vocab = model.shape.vocab
        self._positions, self._pages = len(model.rope), pool.pages
        shape = model.shape
        self._floats = (
            3 * shape.hidden + 2 * shape.head_dim * (shape.heads + shape.kv_heads) + 3 * shape.inner
        )
        self._kept: list[Any] = [model, pool]
        self._buffers: dict[str, Tensor] = {}
        of = [self._layer(layer, model, pool) for layer in model.layers]
        made = (_Layer * len(of))(*of)
        self._kept.append(made)
        self._model = _Model(
            len(of),
            shape.hidden,
            shape.inner,
            shape.heads,
            shape.kv_heads,
            made,
            model.embedding.data_ptr(),
            self._floats_of(model.norm.weight),
            model.rope.data_ptr(),
            _Linear(model.head.data_ptr(), None, shape.hidden, shape.vocab),
            self._positions,
            self._pages,
            shape.eps,
        )
        library.desk_open.restype = c_void_p
        desk = c_void_p(library.desk_open(byref(self._model), c_int64(threads)))
        if not desk:
            raise MemoryError("no memory for a step of the model")
        library.desk_begin.restype = c_int64
        self._begin = functools.partial(library.desk_begin, desk)
        library.desk_finish.restype = c_int64
        self._finish = functools.partial(library.desk_finish, desk)
        weakref.finalize(self, library.desk_close, desk)
        self.approach = functools.partial(library.desk_approach, desk)
        """Works at the step begun, if others do too, and leaves the end of it to them."""
        self._abandon = functools.partial(library.desk_abandon, desk)
        self._under_way: tuple[Step, Structure] | None = None
        """What the C reads and writes until it is finished."""

    @classmethod
    def of(cls, model: object, pool: KVPool, threads: int) -> NativeDecoder | None:
        """None if it cannot be: another kind of model, sizes the C does not do, no compiler."""
        if not isinstance(model, Decoder) or not _fits(model, pool):
            return None
        bf16 = pool.keys[0].dtype is torch.bfloat16
        library = compile.library(
            "decoder.c",
            f"-DDIM={model.shape.head_dim}",
            f"-DSLOTS={pool.page_size}",
            f"-DBF16={int(bf16)}",
        )
        return None if library is None else cls(model, pool, library, threads)

    def plan(self, rows: Sequence[Row], threads: int) -> Step:
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
            units += -(-count * self._group // QUERIES)
        return Step(rows, threads, packed, fed, array("q", bytes(8 * wanted)), tokens, units)

    def begin(self, step: Step) -> None:
        """Returns at once; threads other than this one begin. The step before must be finished.
        Raises IndexError, before anything begins, for a row with an id outside the vocabulary, or
        one that lies outside the context or the pool."""
        wanted = len(step.likely)
        scratch = self._buffer("scratch", step.tokens * self._floats, torch.float32)
        logits = self._buffer("logits", wanted * self._vocab, torch.float32)
        place = self._buffer("units", step.units * UNIT, torch.int64)
        work = _Work(
            step.packed.buffer_info()[0],
            len(step.rows),
            step.threads,
            logits.data_ptr(),
            step.likely.buffer_info()[0],
            scratch.data_ptr(),
            place.data_ptr(),
        )
        outside = self._begin(byref(work))
        if outside >= 0:
            raise IndexError(f"row {outside} of the step: {self._problem(step, outside)}")
        self._under_way = (step, work)

    def _problem(self, step: Step, at: int) -> str:
        """Describe the value of this row that is out of bounds."""
        row = step.rows[at]
        ids = row.ids or step.fed[at : at + 1]
        for id in ids:
            if not 0 <= id < self._vocab:
                return f"id {id} is outside the vocabulary of {self._vocab}"
        end = row.start + row.count
        if row.start < 0 or end > self._positions:
            return f"positions {row.start} to {end} are outside the {self._positions} of the model"
        return f"a page of it is outside the pool of {self._pages}"

    def finish(self) -> tuple[list[int], float]:
        """Works at it, too. Returns, of the S rows that draw, the likeliest id; -1 where a logit is
        NaN or +inf, or all are -inf; and how many seconds ago it was done."""
        assert self._under_way is not None
        ago_ns = self._finish()
        step, _ = self._under_way
        self._under_way = None
        return step.likely.tolist(), ago_ns / 1e9

    def abandon(self) -> None:
        """Ends the step begun, done or not."""
        self._abandon()
        self._under_way = None

    def logits(self, wanted: int) -> Tensor:
        """[S, vocab] fp32 of the last step, `wanted` being S. Overwritten by the next one."""
        return self._buffers["logits"][: wanted * self._vocab].view(wanted, self._vocab)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """At least that long, and the same from step to step."""
        found = self._buffers.get(name)
        if found is None or len(found) < size:
            found = self._buffers[name] = torch.empty(size, dtype=dtype)
        return found

    def _layer(self, layer: layers.Layer, model: Decoder, pool: KVPool) -> Structure:
        attention, mlp, shape = layer.attention, layer.mlp, model.shape
        return _Layer(
            *(self._linear(x) for x in (attention.qkv, attention.out, mlp.gate_up, mlp.down)),
            self._floats_of(layer.before.weight),
            self._floats_of(layer.after.weight),
            self._floats_of(attention.norm_weight),
            _Pool(
                pool.keys[attention.layer].data_ptr(),
                pool.values[attention.layer].data_ptr(),
                shape.kv_heads,
                self._group,
                attention.window or 0,
                attention.scale,
            ),
            attention.rope,
        )

    def _linear(self, linear: layers.Linear) -> Structure:
        out, size_in = linear.weight.shape
        return _Linear(linear.weight.data_ptr(), self._floats_of(linear.bias), size_in, out)

    def _floats_of(self, weight: Tensor | None) -> int | None:
        """Where a copy of it in fp32 lies."""
        if weight is None:
            return None
        self._kept.append(weight.float().contiguous())
        return self._kept[-1].data_ptr()


def _fits(model: Decoder, pool: KVPool) -> bool:
    shape = model.shape
    sizes = (shape.hidden, shape.inner, shape.head_dim, shape.vocab)
    return (
        pool.keys[0].device.type == "cpu"
        and pool.keys[0].dtype in (torch.float32, torch.bfloat16)
        and all(size % MULTIPLE == 0 for size in sizes)
        and all(layer.mlp.act is F.silu for layer in model.layers)
    )

# pyright: basic, reportArgumentType=false
"""The fused operations of a decoder layer in Triton.

Sums are kept in fp32, and a result is rounded once; the plain operations also round between the
parts of an operation. Sizes that the model fixes are constants of a kernel, and the number of
tokens T is a dimension of its grid, so that a model needs one variant of each kernel per kind of
layer, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device.model import PagedAttentionFn
from continuo.engine.device.models.layers import GELU_TANH
from continuo.engine.device.models.operations import PLAIN, AttentionHeads, Rotation
from continuo.engine.device.models.rms_norm import RMSNorm

ACTIVATIONS: dict[Callable[[Tensor], Tensor], str] = {F.silu: "silu", GELU_TANH: "gelu_tanh"}
"""Activations that `_gate` computes. The others are computed by the plain operation."""
GATE_BLOCK = 1024
"""Elements that a program of `_gate` computes."""
HEADS_BLOCK = 1024
"""Elements of a token that a program of `_place_heads` computes, in whole heads."""
NORM_SIZE_MAX = 1 << 15
"""Widest vector that `_add_norm` normalizes: a program keeps the whole vector in registers."""


@triton.jit
def _add_norm(  # noqa: PLR0913 - a kernel takes its sizes apart from its tensors
    x,  # [T, SIZE]; receives the sum if HAS_ADDEND
    addend,  # [T, SIZE]; unused without HAS_ADDEND
    weight,  # [SIZE]
    normed,  # [T, SIZE]
    scale,  # of the addend
    eps,
    SIZE: tl.constexpr,
    PAD: tl.constexpr,  # SIZE as a power of two
    HAS_ADDEND: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, PAD)
    inside = at < SIZE
    total = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDEND:
        total += scale * tl.load(addend + row + at, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(x.dtype.element_ty)
        tl.store(x + row + at, rounded, mask=inside)
        total = rounded.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(total * total, 0) / SIZE + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + at, (total * factor * weights).to(x.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["pages", "slots"])
def _place_heads(  # noqa: PLR0913 - a kernel takes sizes and strides apart from its tensors
    qkv,  # [T, QUERIES + KEYS + VALUES, DIM]
    weight,  # [QUERIES + KEYS, DIM]: of the norm; unused without HAS_NORM
    cos,  # [T, ROTATED]; unused if ROTATED is 0, as `sin`
    sin,  # [T, ROTATED], the first half negated
    query,  # [T, QUERIES, DIM]: receives the queries
    keys,  # [page, KEYS, PAGE, DIM]: receives the keys, as `values` the values
    values,
    pages,  # [T] int64; -1 for a token of padding, whose keys and values are not written
    slots,  # [T] int64
    eps,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,  # 0: values are the keys before norm and rotation
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,  # DIM as a power of two
    ROTATED: tl.constexpr,  # elements of a head that are rotated
    PAGE: tl.constexpr,
    QKV_STRIDE: tl.constexpr,  # elements from token to token
    ROPE_STRIDE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    NORMALIZES_VALUES: tl.constexpr,
    HEADS: tl.constexpr,  # heads of a program: a power of two
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, DIM_PAD)
    is_query, is_value = head < QUERIES, head >= QUERIES + KEYS
    is_key = (head >= QUERIES) & (head < QUERIES + KEYS)
    inside = (head < QUERIES + KEYS + VALUES)[:, None] & (at < DIM)[None, :]
    source = qkv + token * QKV_STRIDE + head[:, None] * DIM
    raw = tl.load(source + at[None, :], mask=inside, other=0.0).to(tl.float32)
    turned = inside & ~is_value[:, None]
    placed = raw
    factor = tl.full([HEADS], 1.0, tl.float32)
    if HAS_NORM or NORMALIZES_VALUES:
        factor = 1.0 / tl.sqrt(tl.sum(raw * raw, 1) / DIM + eps)
    if HAS_NORM:
        weights = tl.load(weight + head[:, None] * DIM + at[None, :], mask=turned, other=0.0)
        placed = raw * factor[:, None] * weights.to(tl.float32)
    if ROTATED > 0:
        is_rotated = turned & (at < ROTATED)[None, :]
        partner = tl.where(at < ROTATED // 2, at + ROTATED // 2, at - ROTATED // 2)
        other = tl.load(source + partner[None, :], mask=is_rotated, other=0.0).to(tl.float32)
        if HAS_NORM:
            weights = tl.load(
                weight + head[:, None] * DIM + partner[None, :], mask=is_rotated, other=0.0
            )
            other = other * factor[:, None] * weights.to(tl.float32)
        angle = token * ROPE_STRIDE + at
        c = tl.load(cos + angle, mask=at < ROTATED, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=at < ROTATED, other=0.0).to(tl.float32)
        placed = placed * c[None, :] + other * s[None, :]
    dtype = query.dtype.element_ty
    target = query + (token * QUERIES + head[:, None]) * DIM + at[None, :]
    tl.store(target, placed.to(dtype), mask=inside & is_query[:, None])
    if KEYS > 0:
        page, slot = tl.load(pages + token), tl.load(slots + token)
        vector = (page * KEYS + head - QUERIES) * PAGE + slot
        target = keys + vector[:, None] * DIM + at[None, :]
        tl.store(target, placed.to(dtype), mask=inside & (is_key & (vector >= 0))[:, None])
        value = raw
        if NORMALIZES_VALUES:
            value = raw * factor[:, None]
        has_value = is_key
        if VALUES > 0:
            vector = (page * KEYS + head - QUERIES - KEYS) * PAGE + slot
            has_value = is_value
        target = values + vector[:, None] * DIM + at[None, :]
        tl.store(target, value.to(dtype), mask=inside & (has_value & (vector >= 0))[:, None])


@triton.jit
def _gate(
    both,  # [T, 2 * SIZE]: gate, then up
    out,  # [T, SIZE]
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.load(both + row * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    if ACT == "silu":
        act = gate * tl.sigmoid(gate)
    else:  # x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
        act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out + row * SIZE + at, (act * up).to(out.dtype.element_ty), mask=inside)


class TritonOperations:
    """The operations in Triton. A case that no kernel computes runs in torch."""

    def add_norm(
        self, x: Tensor, addend: Tensor | None, scale: float, norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        tokens, size = x.shape
        if size > NORM_SIZE_MAX:
            return PLAIN.add_norm(x, addend, scale, norm)
        assert x.is_contiguous()
        if addend is not None:
            addend = addend.contiguous()
        normed = torch.empty_like(x)
        pad = triton.next_power_of_2(size)
        _add_norm[(tokens,)](
            x,
            x if addend is None else addend,
            norm.weight,
            normed,
            float(scale),
            float(norm.eps),
            SIZE=size,
            PAD=pad,
            HAS_ADDEND=addend is not None,
            **_choose_warps(pad),
        )
        return x, normed

    def attend(
        self,
        qkv: Tensor,
        heads: AttentionHeads,
        rotation: Rotation | None,
        attention: PagedAttentionFn,
    ) -> Tensor:
        tokens, dim = len(qkv), heads.dim
        assert qkv.stride(1) == 1
        query = qkv.new_empty(tokens, heads.queries, dim)
        keys = values = query
        pages = slots = query
        if heads.keys:
            destination = attention.find_destination(heads.layer)
            keys, values = destination.keys, destination.values
            pages, slots = destination.pages, destination.slots
        cos, sin = (query, query) if rotation is None else rotation
        pad = triton.next_power_of_2(dim)
        program_heads = max(1, HEADS_BLOCK // pad)
        count = heads.queries + heads.keys + heads.values
        _place_heads[(tokens, triton.cdiv(count, program_heads))](
            qkv,
            query if heads.norm is None else heads.norm.weight,
            cos,
            sin,
            query,
            keys,
            values,
            pages,
            slots,
            float(heads.eps),
            QUERIES=heads.queries,
            KEYS=heads.keys,
            VALUES=heads.values,
            DIM=dim,
            DIM_PAD=pad,
            ROTATED=0 if rotation is None else cos.shape[-1],
            PAGE=keys.shape[2] if heads.keys else 1,
            QKV_STRIDE=qkv.stride(0),
            ROPE_STRIDE=cos.stride(0),
            HAS_NORM=heads.norm is not None,
            NORMALIZES_VALUES=heads.normalizes_values,
            HEADS=program_heads,
        )
        return attention(heads.layer, query, None, None, heads.params)

    def gate(self, both: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        name = ACTIVATIONS.get(act)
        if name is None:
            return PLAIN.gate(both, act)
        tokens, size = len(both), both.shape[1] // 2
        assert both.is_contiguous()
        out = both.new_empty(tokens, size)
        _gate[(tokens, triton.cdiv(size, GATE_BLOCK))](
            both, out, SIZE=size, BLOCK=GATE_BLOCK, ACT=name
        )
        return out


def _choose_warps(elements: int) -> dict[str, int]:
    """Return the launch option by which each thread has about eight elements of a vector."""
    return {"num_warps": min(16, max(1, elements // 256))}

# pyright: basic
"""The operations of a decoder layer that are fused to one kernel where Triton compiles kernels, and
their plain implementation in torch, which every device runs.

    add_norm   residual add, RMS norm
    attend     norm of queries and keys, rotary embedding, KV write; then paged attention
    gate       activation of the gate, product with up

`kernels/layer_kernels.py` implements them in Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device.model import AttentionParams, PagedAttentionFn
from continuo.engine.device.models.rms_norm import RMSNorm

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the positions of T tokens, each [T, 1, dim]; the first half of the sines is
negated (see `rotate`)."""


@dataclass(frozen=True, eq=False, slots=True)
class AttentionHeads:
    """The heads of an attention layer, in the order in which its projection yields them: queries,
    keys, values, each of `dim` elements. Queries and keys are normalized and rotated together."""

    layer: int
    """Layer whose keys and values are attended to, and written if the layer has its own."""
    queries: int
    keys: int
    """0: the keys and values are those of an earlier layer."""
    values: int
    """0: the values are the keys before their norm, unless `keys` is 0, too."""
    dim: int
    params: AttentionParams
    eps: float
    norm: RMSNorm | None
    """Norm of queries and keys, with a weight for each head."""
    normalizes_values: bool


class Operations(Protocol):
    """The fused operations."""

    def add_norm(
        self, x: Tensor, addend: Tensor | None, scale: float, norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """Compute y = x + scale * addend, [T, size]; return y and norm(y). `x` may be overwritten.
        `addend` None: y is x."""
        ...

    def attend(
        self,
        qkv: Tensor,
        heads: AttentionHeads,
        rotation: Rotation | None,
        attention: PagedAttentionFn,
    ) -> Tensor:
        """Normalize and rotate queries and keys, write keys and values to the KV pool, and compute
        attention: qkv [T, heads * dim] -> [T, queries, dim]."""
        ...

    def gate(self, both: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute act(gate) * up: both [T, 2 * size], gate before up -> [T, size]."""
        ...


class PlainOperations:
    """The operations in torch."""

    def add_norm(
        self, x: Tensor, addend: Tensor | None, scale: float, norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        if addend is not None:
            x = x.add_(addend, alpha=scale)
        return x, norm(x)

    def attend(
        self,
        qkv: Tensor,
        heads: AttentionHeads,
        rotation: Rotation | None,
        attention: PagedAttentionFn,
    ) -> Tensor:
        rotated = heads.queries + heads.keys
        qkv = qkv.reshape(-1, rotated + heads.values, heads.dim)
        qk = qkv[:, :rotated]
        key = value = None
        if heads.keys:
            value = qkv[:, rotated:] if heads.values else qk[:, heads.queries :]
            if heads.normalizes_values:
                value = F.rms_norm(value, (heads.dim,), None, heads.eps)
        if heads.norm is not None:
            qk = heads.norm(qk)
        if rotation is not None:
            qk = rotate(qk, *rotation)
        if heads.keys:
            key = qk[:, heads.queries :]
        return attention(heads.layer, qk[:, : heads.queries], key, value, heads.params)

    def gate(self, both: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        size = both.shape[1] // 2
        return act(both[:, :size]).mul_(both[:, size:])


PLAIN = PlainOperations()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to the first dim of x [T, heads, head_dim], with cos and sin
    [T, 1, dim].

    The first half of `sin` is negated, so that rolling by half of dim replaces transformers'
    `rotate_half`.
    """
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], cos, sin), x[..., dim:]), -1)
    return torch.addcmul(x * cos, x.roll(dim // 2, -1), sin)

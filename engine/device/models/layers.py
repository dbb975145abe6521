# pyright: basic
"""The arithmetic of a Llama-family decoder layer, on a flat sequence of tokens.

The T tokens of all rows of a step are concatenated; only the attention function `attend` depends on
the rows and on the pages that hold their KV. Parameters are plain tensors, not nn.Modules, because
calling a module takes more time than the computation of a small layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device.model import AttentionFn


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to x [T, heads, dim], with cos and sin [T, 1, dim].

    The first half of `sin` is negated, so that rolling by half a head replaces transformers'
    `rotate_half`.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Linear:
    """A linear layer y = x W^T + b, W [out, in]. Several checkpoint matrices may be stacked along
    `out`."""

    def __init__(self, size_in: int, size_out: int, like: Tensor, *, bias: bool) -> None:
        self.weight = like.new_empty(size_out, size_in)
        self.bias = like.new_empty(size_out) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RMSNorm:
    """RMS norm over the last dimension, computed in fp32 inside torch's kernel."""

    def __init__(self, size: int, eps: float, like: Tensor) -> None:
        self.weight = like.new_empty(size)
        self.shape = (size,)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight, self.eps)


class SelfAttention:
    """Self-attention with one matrix for queries, keys and values; queries and keys are normalized
    and rotated together."""

    def __init__(  # noqa: PLR0913 - one argument per difference between models, by keyword
        self,
        *,
        layer: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None,
        has_rope: bool,
        qkv_bias: bool,
        out_bias: bool,
        qk_norm_eps: float | None,
        like: Tensor,
    ) -> None:
        self.layer, self.window, self.has_rope = layer, window, has_rope
        self.heads, self.rotated_heads, self.all_heads = (
            heads,
            heads + kv_heads,
            heads + 2 * kv_heads,
        )
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.qkv = Linear(hidden, self.all_heads * head_dim, like, bias=qkv_bias)
        self.out = Linear(heads * head_dim, hidden, like, bias=out_bias)
        self.norm_eps = qk_norm_eps
        self.norm_weight = None  # [heads + kv_heads, dim]: q_norm, then k_norm, row by row
        if qk_norm_eps is not None:
            self.norm_weight = like.new_empty(self.rotated_heads, head_dim)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, attend: AttentionFn) -> Tensor:
        qkv = self.qkv(x).view(-1, self.all_heads, self.head_dim)
        qk = qkv[:, : self.rotated_heads]
        if self.norm_weight is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.norm_eps) * self.norm_weight
        if self.has_rope:
            qk = rotate(qk, cos, sin)
        query, key, value = qk[:, : self.heads], qk[:, self.heads :], qkv[:, self.rotated_heads :]
        attended = attend(self.layer, query, key, value, self.scale, self.window)
        return self.out(attended.reshape(-1, self.heads * self.head_dim))


class GatedMlp:
    """The gated MLP down(act(gate(x)) * up(x)), with gate and up in one matrix."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        act: Callable[[Tensor], Tensor],
        like: Tensor,
        *,
        bias: bool,
    ) -> None:
        self.intermediate = intermediate
        self.act = act
        self.gate_up = Linear(hidden, 2 * intermediate, like, bias=bias)
        self.down = Linear(intermediate, hidden, like, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        return self.down(self.act(both[:, : self.intermediate]).mul_(both[:, self.intermediate :]))


class DecoderLayer:
    """A pre-norm decoder layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        input_norm: RMSNorm,
        attention: SelfAttention,
        post_attention_norm: RMSNorm,
        mlp: GatedMlp,
    ) -> None:
        self.input_norm, self.attention, self.post_attention_norm, self.mlp = (
            input_norm,
            attention,
            post_attention_norm,
            mlp,
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, attend: AttentionFn) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin, attend)
        return x.add_(self.mlp(self.post_attention_norm(x)))

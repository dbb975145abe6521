# pyright: basic
"""The softmax attention of a decoder layer, over the KV pages of each row."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from continuo.engine.architectures.shapes import AttentionShape, DecoderShape, TensorNames
from continuo.engine.device.model import AttentionParams, KVShape, LayerMemory, WeightTarget
from continuo.engine.device.models.layers import (
    ForwardStep,
    Linear,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.operations import AttentionHeads
from continuo.engine.device.models.rms_norm import RMSNorm


class SelfAttention:
    """Self-attention with one matrix for queries, keys and values; queries and keys are normalized
    and rotated together. With a gate, the matrix begins with the rows of the gates. A layer may
    lack the rows of values, or of keys and values."""

    def __init__(
        self, layer: int, shape: AttentionShape, decoder: DecoderShape, like: Tensor
    ) -> None:
        heads, dim = shape.heads, shape.head_dim
        self.shape = shape
        self.kv_layer = layer if shape.kv_layer is None else shape.kv_layer
        self.memory = LayerMemory()
        self.key_heads = self.value_heads = 0
        if shape.kv_layer is None:
            self.memory = LayerMemory(KVShape(shape.kv_heads, dim, dim), shape.window)
            self.key_heads = shape.kv_heads
            self.value_heads = 0 if shape.key_is_value else shape.kv_heads
        self.rotated_heads = heads + self.key_heads
        self.query_rows = heads * dim * (1 + shape.has_gate)
        rows = self.query_rows + (self.key_heads + self.value_heads) * dim
        self.qkv = Linear(decoder.hidden, rows, like, bias=shape.qkv_bias)
        self.out = Linear(heads * dim, decoder.hidden, like, bias=shape.out_bias)
        self.eps = decoder.eps
        self.qk_norm = None  # q_norm, then k_norm, row by row
        if shape.qk_norm:
            is_centered = decoder.has_centered_norms
            rows = self.rotated_heads
            self.qk_norm = RMSNorm(dim, decoder.eps, like, is_centered=is_centered, rows=rows)
        self.whole_norms: tuple[RMSNorm, RMSNorm] | None = None  # of queries, and of keys
        if shape.norms_all_heads:
            self.whole_norms = (
                RMSNorm(heads * dim, decoder.eps, like),
                RMSNorm(self.key_heads * dim, decoder.eps, like),
            )
        sinks = like.new_empty(heads) if shape.has_sinks else None
        self.params = AttentionParams(shape.scale, shape.window, shape.softcap, sinks)
        self.heads = AttentionHeads(
            layer=self.kv_layer,
            queries=heads,
            keys=self.key_heads,
            values=self.value_heads,
            dim=dim,
            params=self.params,
            eps=decoder.eps,
            norm=self.qk_norm,
            normalizes_values=shape.v_norm,
        )

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        heads, dim, gate = self.shape.heads, self.shape.head_dim, None
        qkv = self.qkv(x)
        if self.shape.has_gate:
            gate, qkv = qkv[:, : heads * dim], qkv[:, heads * dim :]
        if self.whole_norms is not None:
            sizes = [heads * dim, self.key_heads * dim, self.value_heads * dim]
            query, key, value = qkv.split(sizes, -1)
            query_norm, key_norm = self.whole_norms
            qkv = torch.cat((query_norm(query), key_norm(key), value), -1)
        rope = self.shape.rope
        rotation = None if rope is None else step.rope[rope]
        attended = step.operations.attend(qkv, self.heads, rotation, step.attend)
        attended = attended.reshape(-1, heads * dim)
        return self.out(attended if gate is None else attended * gate.sigmoid())

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        dim = self.shape.head_dim
        counts = (self.query_rows, self.key_heads * dim, self.value_heads * dim)
        rows = [count for count in counts if count]
        # A family stores one matrix for all, or one for each part that the layer has.
        targets = self.qkv.targets(names.qkv[: len(rows)], rows) | self.out.targets([names.out])
        if self.shape.has_gate:
            for name in self.qkv.targets(names.qkv[:1]):
                targets[name] = replace(targets[name], convert=self._put_gates_first)
        if self.qk_norm is not None:
            heads = self.shape.heads
            targets[f"{names.q_norm}.weight"] = self.qk_norm.target(slice(0, heads))
            if self.key_heads:
                targets[f"{names.k_norm}.weight"] = self.qk_norm.target(slice(heads, None))
        if self.whole_norms is not None:
            for name, norm in zip((names.q_norm, names.k_norm), self.whole_norms, strict=True):
                targets[f"{name}.weight"] = norm.target()
        if self.params.sinks is not None:
            targets["sinks"] = whole_target(self.params.sinks)
        return prefix_names(f"{names.attention}.", targets)

    def _put_gates_first(self, weight: Tensor) -> Tensor:
        """Reorder the rows of `q_proj`, in which those of each query head are followed by those of
        its gate."""
        heads, dim = self.shape.heads, self.shape.head_dim
        query, gate = weight.unflatten(0, (heads, 2, dim)).unbind(1)
        return torch.cat((gate.flatten(0, 1), query.flatten(0, 1)))

# pyright: basic
"""A decoder for the Llama family, and the mapping of each architecture's config to its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from continuo.engine.device.model import AttentionFn, KVShape, WeightTarget
from continuo.engine.device.models import rope
from continuo.engine.device.models.layers import (
    DecoderLayer,
    GatedMlp,
    Linear,
    RMSNorm,
    SelfAttention,
)
from continuo.engine.errors import ModelError


@dataclass(frozen=True)
class DecoderShape:
    """Parameters in which Llama-family models differ. Sizes are in elements."""

    vocab_size: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    act: str
    has_tied_embeddings: bool
    windows: tuple[int | None, ...]
    """Attention window in tokens, including the current one, by layer; None: unlimited."""
    layer_has_rope: tuple[bool, ...]
    """Whether queries and keys get a rotary embedding, by layer."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def _common_shape(config: Any, **differences: Any) -> DecoderShape:
    layers = config.num_hidden_layers
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        "eps": config.rms_norm_eps,
        "act": config.hidden_act,
        "has_tied_embeddings": bool(config.tie_word_embeddings),
        "windows": (None,) * layers,
        "layer_has_rope": (True,) * layers,
    }
    return DecoderShape(**(fields | differences))


def _read_windows(config: Any) -> tuple[int | None, ...]:
    """Read the attention window of each layer from `layer_types`. Raises ModelError for an unknown
    layer type."""
    kinds = config.layer_types or ["full_attention"] * config.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(f"config.json: layer type {min(unknown)!r} is not supported")
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)


def _llama(config: Any) -> DecoderShape:
    bias = config.attention_bias
    return _common_shape(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)


def _mistral(config: Any) -> DecoderShape:
    return _common_shape(config, windows=(config.sliding_window,) * config.num_hidden_layers)


def _qwen2(config: Any) -> DecoderShape:
    return _common_shape(config, qkv_bias=True, windows=_read_windows(config))


def _qwen3(config: Any) -> DecoderShape:
    bias = config.attention_bias
    return _common_shape(
        config, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=_read_windows(config)
    )


def _smollm3(config: Any) -> DecoderShape:
    bias = config.attention_bias
    return _common_shape(
        config,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.mlp_bias,
        windows=_read_windows(config),
        layer_has_rope=tuple(map(bool, config.no_rope_layers[: config.num_hidden_layers])),
    )


ARCHITECTURES: dict[str, Callable[[Any], DecoderShape]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "SmolLM3ForCausalLM": _smollm3,
}


class LlamaDecoder:
    """A Llama-family model: embedding → layers → norm → head, for the T tokens of several rows."""

    def __init__(
        self, shape: DecoderShape, config: PretrainedConfig, length: int, like: Tensor
    ) -> None:
        """Allocate the parameters, uninitialized, with the dtype and device of `like`.

        `length`: number of positions in the rotary table.
        """
        self.shape = shape
        self.vocab_size = shape.vocab_size
        self.kv_shapes = [KVShape(shape.kv_heads, shape.head_dim, shape.head_dim)] * len(
            shape.windows
        )
        self.embedding = like.new_empty(shape.vocab_size, shape.hidden)
        act = F.silu if shape.act in ("silu", "swish") else ACT2FN[shape.act]
        self.layers = [self._build_layer(number, act, like) for number in range(len(shape.windows))]
        self.norm = RMSNorm(shape.hidden, shape.eps, like)
        self.head = (
            self.embedding
            if shape.has_tied_embeddings
            else like.new_empty(shape.vocab_size, shape.hidden)
        )
        self.rope_table = rope.build_table(config, shape.head_dim, length, like)

    def _build_layer(
        self, number: int, act: Callable[[Tensor], Tensor], like: Tensor
    ) -> DecoderLayer:
        shape = self.shape
        attention = SelfAttention(
            layer=number,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            window=shape.windows[number],
            has_rope=shape.layer_has_rope[number],
            qkv_bias=shape.qkv_bias,
            out_bias=shape.out_bias,
            qk_norm_eps=shape.eps if shape.qk_norm else None,
            like=like,
        )
        mlp = GatedMlp(shape.hidden, shape.intermediate, act, like, bias=shape.mlp_bias)
        before, after = (RMSNorm(shape.hidden, shape.eps, like) for _ in range(2))
        return DecoderLayer(before, attention, after, mlp)

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: AttentionFn, logit_indices: Tensor | None
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] int64 -> logits [S, vocab].

        `logit_indices` [S]: indices of the tokens whose logits are computed; None: all T, in order.
        """
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.rope_table[positions].unsqueeze(2).unbind(1)  # each [T, 1, dim]
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        if logit_indices is not None:
            x = x.index_select(0, logit_indices)
        return F.linear(self.norm(x), self.head)

    def weight_targets(self) -> dict[str, WeightTarget]:
        """Map the names of all required checkpoint tensors to their destinations."""
        targets = {"model.embed_tokens.weight": _whole_target(self.embedding)}
        for number, layer in enumerate(self.layers):
            for name, target in _layer_targets(layer, self.shape).items():
                targets[f"model.layers.{number}.{name}"] = target
        targets["model.norm.weight"] = _whole_target(self.norm.weight)
        if self.head is not self.embedding:
            targets["lm_head.weight"] = _whole_target(self.head)
        return targets


def _whole_target(target: Tensor) -> WeightTarget:
    return WeightTarget(target, tuple(target.shape))


def _stacked_targets(name: str, linear: Linear, parts: dict[str, int]) -> dict[str, WeightTarget]:
    """Map the names of the checkpoint tensors that `linear` stacks to their rows of `linear`.

    `parts`: name -> number of rows of each stacked matrix, in order.
    """
    targets: dict[str, WeightTarget] = {}
    top = 0
    for part, rows in parts.items():
        targets[f"{name}.{part}.weight"] = _whole_target(linear.weight[top : top + rows])
        if linear.bias is not None:
            targets[f"{name}.{part}.bias"] = _whole_target(linear.bias[top : top + rows])
        top += rows
    return targets


def _layer_targets(layer: DecoderLayer, shape: DecoderShape) -> dict[str, WeightTarget]:
    attention, mlp = layer.attention, layer.mlp
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    targets = {
        "input_layernorm.weight": _whole_target(layer.input_norm.weight),
        "post_attention_layernorm.weight": _whole_target(layer.post_attention_norm.weight),
    }
    parts = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    targets |= _stacked_targets("self_attn", attention.qkv, parts)
    targets |= _stacked_targets("self_attn", attention.out, {"o_proj": shape.hidden})
    if attention.norm_weight is not None:
        q_norm, k_norm = attention.norm_weight.split((shape.heads, shape.kv_heads))
        targets["self_attn.q_norm.weight"] = WeightTarget(q_norm, (shape.head_dim,))
        targets["self_attn.k_norm.weight"] = WeightTarget(k_norm, (shape.head_dim,))
    targets |= _stacked_targets(
        "mlp", mlp.gate_up, {"gate_proj": shape.intermediate, "up_proj": shape.intermediate}
    )
    targets |= _stacked_targets("mlp", mlp.down, {"down_proj": shape.hidden})
    return targets


def empty_tensor(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a tensor without elements, which carries a dtype and a device: the argument `like` of
    functions and classes that create tensors."""
    return torch.empty(0, dtype=dtype, device=device)

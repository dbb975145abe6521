# pyright: basic
"""One decoder for the Llama family, and the table that says how each architecture maps onto it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from continuo.engine.device.model import Attend, KVShape, Slot
from continuo.engine.device.models import rope
from continuo.engine.device.models.layers import Attention, Layer, Linear, Mlp, Norm
from continuo.engine.errors import ModelError


@dataclass(frozen=True)
class Shape:
    """What makes one Llama-family model differ from another. Sizes in elements."""

    vocab: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    act: str
    tied: bool
    windows: tuple[int | None, ...]
    """Per layer: how many positions back a token sees, itself included; None: all."""
    ropes: tuple[bool, ...]
    """Per layer: whether queries and keys are rotated."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def _common(config: Any, **differences: Any) -> Shape:
    layers = config.num_hidden_layers
    fields: dict[str, Any] = {
        "vocab": config.vocab_size,
        "hidden": config.hidden_size,
        "inner": config.intermediate_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        "eps": config.rms_norm_eps,
        "act": config.hidden_act,
        "tied": bool(config.tie_word_embeddings),
        "windows": (None,) * layers,
        "ropes": (True,) * layers,
    }
    return Shape(**(fields | differences))


def _windows(config: Any) -> tuple[int | None, ...]:
    """The layers that `layer_types` marks as sliding."""
    kinds = config.layer_types or ["full_attention"] * config.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(f"config.json: layer type {min(unknown)!r} is not supported")
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)


def _llama(config: Any) -> Shape:
    bias = config.attention_bias
    return _common(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)


def _mistral(config: Any) -> Shape:
    return _common(config, windows=(config.sliding_window,) * config.num_hidden_layers)


def _qwen2(config: Any) -> Shape:
    return _common(config, qkv_bias=True, windows=_windows(config))


def _qwen3(config: Any) -> Shape:
    bias = config.attention_bias
    return _common(config, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=_windows(config))


def _smollm3(config: Any) -> Shape:
    bias = config.attention_bias
    return _common(
        config,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.mlp_bias,
        windows=_windows(config),
        ropes=tuple(bool(used) for used in config.no_rope_layers[: config.num_hidden_layers]),
    )


SHAPES: dict[str, Callable[[Any], Shape]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "SmolLM3ForCausalLM": _smollm3,
}


class Decoder:
    """embed → layers → norm → head, for T tokens of any number of rows at once."""

    def __init__(self, shape: Shape, config: PretrainedConfig, length: int, like: Tensor) -> None:
        """Parameters are left unfilled; `like` gives their dtype and device; `length` is the
        number of positions that can be rotated."""
        self.shape = shape
        self.vocab = shape.vocab
        self.kv = [KVShape(shape.kv_heads, shape.head_dim, shape.head_dim)] * len(shape.windows)
        self.embedding = like.new_empty(shape.vocab, shape.hidden)
        act = F.silu if shape.act in ("silu", "swish") else ACT2FN[shape.act]
        self.layers = [self._layer(number, act, like) for number in range(len(shape.windows))]
        self.norm = Norm(shape.hidden, shape.eps, like)
        self.head = self.embedding if shape.tied else like.new_empty(shape.vocab, shape.hidden)
        self.rope = rope.table(config, shape.head_dim, length, like)

    def _layer(self, number: int, act: Callable[[Tensor], Tensor], like: Tensor) -> Layer:
        shape = self.shape
        attention = Attention(
            layer=number,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            window=shape.windows[number],
            rope=shape.ropes[number],
            qkv_bias=shape.qkv_bias,
            out_bias=shape.out_bias,
            qk_norm_eps=shape.eps if shape.qk_norm else None,
            like=like,
        )
        mlp = Mlp(shape.hidden, shape.inner, shape.mlp_bias, act, like)
        before, after = (Norm(shape.hidden, shape.eps, like) for _ in range(2))
        return Layer(before, attention, after, mlp)

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None
    ) -> Tensor:
        """tokens, positions [T] int64 -> logits [S, vocab] of the `wanted` tokens (None: of all,
        in order)."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.rope[positions].unsqueeze(2).unbind(1)  # each [T, 1, dim]
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        if wanted is not None:
            x = x.index_select(0, wanted)
        return F.linear(self.norm(x), self.head)

    def slots(self) -> dict[str, Slot]:
        """Every checkpoint tensor this model needs, by name, and the place it fills."""
        slots = {"model.embed_tokens.weight": _whole(self.embedding)}
        for number, layer in enumerate(self.layers):
            for name, slot in _layer_slots(layer, self.shape).items():
                slots[f"model.layers.{number}.{name}"] = slot
        slots["model.norm.weight"] = _whole(self.norm.weight)
        if self.head is not self.embedding:
            slots["lm_head.weight"] = _whole(self.head)
        return slots


def _whole(target: Tensor) -> Slot:
    return Slot(target, tuple(target.shape))


def _stacked(name: str, linear: Linear, parts: dict[str, int]) -> dict[str, Slot]:
    """Slots of the matrices `parts` (name -> rows) that stand one below the other in `linear`."""
    slots: dict[str, Slot] = {}
    top = 0
    for part, rows in parts.items():
        slots[f"{name}.{part}.weight"] = _whole(linear.weight[top : top + rows])
        if linear.bias is not None:
            slots[f"{name}.{part}.bias"] = _whole(linear.bias[top : top + rows])
        top += rows
    return slots


def _layer_slots(layer: Layer, shape: Shape) -> dict[str, Slot]:
    attention, mlp = layer.attention, layer.mlp
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    slots = {
        "input_layernorm.weight": _whole(layer.before.weight),
        "post_attention_layernorm.weight": _whole(layer.after.weight),
    }
    parts = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    slots |= _stacked("self_attn", attention.qkv, parts)
    slots |= _stacked("self_attn", attention.out, {"o_proj": shape.hidden})
    if attention.norm_weight is not None:
        q_norm, k_norm = attention.norm_weight.split((shape.heads, shape.kv_heads))
        slots["self_attn.q_norm.weight"] = Slot(q_norm, (shape.head_dim,))
        slots["self_attn.k_norm.weight"] = Slot(k_norm, (shape.head_dim,))
    slots |= _stacked("mlp", mlp.gate_up, {"gate_proj": shape.inner, "up_proj": shape.inner})
    slots |= _stacked("mlp", mlp.down, {"down_proj": shape.hidden})
    return slots


def empty(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that carries nothing but dtype and device."""
    return torch.empty(0, dtype=dtype, device=device)

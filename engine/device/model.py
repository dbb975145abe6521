# pyright: basic
"""The contract between the runner and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

AttentionFn = Callable[[int, Tensor, Tensor, Tensor, float, int | None], Tensor]
"""(layer, query [T, heads, dim], key and value [T, kv_heads, dim], scale, window) ->
[T, heads, dim]: writes the new keys and values, then attends over all that came before."""


@dataclass(frozen=True)
class KVShape:
    """What one layer keeps per token: `heads` keys of `key_dim` and values of `value_dim`."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class WeightTarget:
    """Where a checkpoint tensor goes: `target` is filled from a tensor of `shape` (broadcast)."""

    tensor: Tensor
    shape: tuple[int, ...]


class CausalLM(Protocol):
    """What the runner asks of a model: our own decoder, or one of transformers'."""

    kv_shapes: list[KVShape]
    """What each layer keeps per token."""
    vocab_size: int

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: AttentionFn, logit_indices: Tensor | None
    ) -> Tensor:
        """tokens, positions [T] -> logits [S, vocab] of the `wanted` tokens (None: of all)."""
        ...

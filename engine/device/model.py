# pyright: basic
"""The interface between the runner and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

AttentionFn = Callable[[int, Tensor, Tensor, Tensor, float, int | None], Tensor]
"""(layer, query [T, heads, dim], key and value [T, kv_heads, dim], scale, window) -> [T, heads,
dim]: writes the keys and values of T tokens to the KV pool, then computes causal attention of each
token to the last `window` tokens of its row, itself included (None: no window)."""


@dataclass(frozen=True)
class KVShape:
    """Shape of the KV of one token in one layer: `heads` keys of `key_dim` elements and `heads`
    values of `value_dim` elements."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class WeightTarget:
    """Destination of a checkpoint tensor. The checkpoint tensor must have shape `shape`; if that is
    smaller than `tensor`, the copy is broadcast."""

    tensor: Tensor
    shape: tuple[int, ...]


class CausalLM(Protocol):
    """A model as the runner sees it: our own decoder, or one of transformers'."""

    kv_shapes: list[KVShape]
    """Shape of the KV of one token, by layer."""
    vocab_size: int

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: AttentionFn, logit_indices: Tensor | None
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] -> logits [S, vocab].

        `logit_indices` [S]: indices of the tokens whose logits are computed; None: all T, in order.
        """
        ...

# pyright: basic
"""The interface between the runner and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

AttentionFn = Callable[[int, Tensor, Tensor, Tensor, float, int | None], Tensor]
"""(layer, query [T, heads, dim], key and value [T, kv_heads, dim], scale, window) ->
[T, heads, dim]: writes the new keys and values, then attends to them and all earlier ones."""


@dataclass(frozen=True)
class KVShape:
    """KV of one layer per token: `heads` keys of `key_dim` and values of `value_dim` elements."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class WeightTarget:
    """The destination of a checkpoint tensor of shape `shape`, copied (broadcast) to `tensor`."""

    tensor: Tensor
    shape: tuple[int, ...]


class CausalLM(Protocol):
    """A model as the runner sees it: our own decoder, or one of transformers'."""

    kv_shapes: list[KVShape]
    """KV per token, by layer."""
    vocab_size: int

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: AttentionFn, logit_indices: Tensor | None
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] -> logits [S, vocab].

        `logit_indices` [S]: the tokens whose logits are computed; None: all.
        """
        ...

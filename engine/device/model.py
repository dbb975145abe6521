# pyright: basic
"""The interface between the runner and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from continuo.engine.device.quantization import QuantizedMatrix


@dataclass(frozen=True, eq=False)
class AttentionParams:
    """How the attention of a layer weighs the positions that a token attends to."""

    scale: float
    """Factor of the scores, usually 1 / sqrt(dim)."""
    window: int | None = None
    """Number of last positions of the row that a token attends to, its own included; None: all."""
    softcap: float | None = None
    """Bound c of the scores s: s becomes c * tanh(s / c) (Gemma 2). None: no bound."""
    sinks: Tensor | None = None
    """[heads] attention sinks: a score for each head that takes part in the softmax, but belongs to
    no position (gpt-oss). None: no sinks."""


AttentionFn = Callable[[int, Tensor, Tensor | None, Tensor | None, AttentionParams], Tensor]
"""(layer, query [T, heads, dim], key and value [T, kv_heads, dim], params) -> [T, heads, dim].

Writes the keys and values of T tokens to the KV pool (None: they have been written already), then
computes causal attention of each token to the positions of its row."""


@dataclass(frozen=True, eq=False, slots=True)
class KVDestination:
    """The memory to which the keys and values of the T tokens of a step are written in a layer."""

    keys: Tensor
    """[page, kv_head, slot, key_dim]: the page pool of the layer, as `values`."""
    values: Tensor
    pages: Tensor
    """[T] int64: the page of each token."""
    slots: Tensor
    """[T] int64: the slot of each token within its page."""


class PagedAttentionFn(Protocol):
    """An `AttentionFn` with access to its destination of keys and values, so that a kernel that
    computes them can write them itself."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        params: AttentionParams,
    ) -> Tensor: ...

    def find_destination(self, layer: int) -> KVDestination: ...


@dataclass(frozen=True)
class KVShape:
    """Shape of the KV of one token in one layer: `heads` keys of `key_dim` elements and `heads`
    values of `value_dim` elements."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class StateTensor:
    """A tensor of the recurrent state of one sequence in one layer. `dtype` None: the dtype of the
    model."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class LayerMemory:
    """Memory of one layer for a sequence: keys and values (of the last `window` tokens; None:
    of all), a recurrent state, both, or nothing."""

    kv: KVShape | None = None
    window: int | None = None
    """Attention window in tokens, the current one included."""
    state: tuple[StateTensor, ...] = ()


class StepStates(Protocol):
    """The recurrent states of the R rows of one step. A layer reads the states before the first
    token of each row, and writes those after the last one; tokens of row r are those from
    row_offsets[r] to row_offsets[r + 1] among the step's T."""

    row_offsets: list[int]

    def read(self, layer: int) -> tuple[Tensor, ...]:
        """Return the state of each row, [R, *shape] for each tensor that the layer declares; zeros
        for a row that starts at position 0."""
        ...

    def write(self, layer: int, *state: Tensor) -> None: ...


class QuantizableLayer(Protocol):
    """A linear layer, of which some or all rows may be quantized."""

    quantized: dict[int, QuantizedMatrix]
    """Quantized rows, by the number of the first."""
    is_tied: bool
    """Whether the elements of the weight are needed as well, because the weight is the embedding,
    too."""

    def settle(self) -> None:
        """Complete the loading of the layer."""
        ...


@dataclass(frozen=True)
class WeightTarget:
    """Destination of a checkpoint tensor. The checkpoint tensor must have shape `shape`; if that is
    smaller than `tensor`, the copy is broadcast."""

    tensor: Tensor
    shape: tuple[int, ...]
    convert: Callable[[Tensor], Tensor] | None = None
    """Conversion of the checkpoint tensor before the copy, which may change its shape."""
    layer: QuantizableLayer | None = None
    """Layer that the tensor is a part of and that takes it quantized as well; None: the tensor is
    always dequantized. `convert` only reorders its rows."""
    first_row: int = 0
    """Row of the layer's weight at which the tensor begins."""


class CausalLM(Protocol):
    """A model as the runner sees it: our own decoder, or one of transformers'."""

    memory: list[LayerMemory]
    """Memory of each layer; `attend` and `states` take an index into this list as layer."""
    vocab_size: int

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        logit_indices: Tensor | None,
        states: StepStates,
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] -> logits [S, vocab].

        `logit_indices` [S]: indices of the tokens whose logits are computed; None: all T, in order.
        `states`: unused by a model without recurrent layers.
        """
        ...

# pyright: basic
"""The interface of attention backends, which compute the attention of a model over paged KV."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionFn
from continuo.engine.device.step_inputs import StepInputs


class StepAttention(Protocol):
    """Attention function of one step; all layers share its index tensors."""

    def __call__(self, layer: int, query: Tensor, scale: float, window: int | None) -> Tensor:
        """Compute causal attention: query [T, heads, key_dim] -> [T, heads, value_dim].

        A token at position p attends to the last `window` positions of its row up to p, p included
        (None: all positions up to p). The keys and values of the step's tokens must already be in
        the pool.
        """
        ...


class AttentionBackend(Protocol):
    """Builds the attention function of each step. Keeps no state between steps except buffers."""

    def bind(self, step: StepInputs, pool: KVPool) -> AttentionFn: ...


class PagedAttention:
    """An `AttentionFn` that writes a step's keys and values to the pool with torch, then calls a
    `StepAttention`."""

    def __init__(self, step: StepInputs, pool: KVPool, attention: StepAttention) -> None:
        self.pool, self.attention = pool, attention
        heads = {shape.heads for shape in pool.shapes}
        mappings = {count: pool.map_slots(step.pages, step.slots, count) for count in heads}
        self.slot_mappings = [mappings[shape.heads] for shape in pool.shapes]

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        self.pool.write(layer, self.slot_mappings[layer], key, value)
        return self.attention(layer, query, scale, window)

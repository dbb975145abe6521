# pyright: basic
"""The interface of attention backends, which compute the attention of a model over paged KV."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, KVDestination, PagedAttentionFn
from continuo.engine.device.step_inputs import StepInputs


class StepAttention(Protocol):
    """Attention function of one step; all layers share its index tensors."""

    def __call__(self, layer: int, query: Tensor, params: AttentionParams) -> Tensor:
        """Compute causal attention: query [T, heads, key_dim] -> [T, heads, value_dim].

        A token at position p attends to the positions of its row up to p, p included, or to the
        last `params.window` of them. The keys and values of the step's tokens must already be in
        the pool.
        """
        ...


class AttentionBackend(Protocol):
    """Builds the attention function of each step. Keeps no state between steps except buffers."""

    def bind(self, step: StepInputs, pool: KVPool) -> PagedAttentionFn: ...


class PagedAttention:
    """A `PagedAttentionFn` that writes keys and values to the pool with torch, then calls a
    `StepAttention`."""

    def __init__(self, step: StepInputs, pool: KVPool, attention: StepAttention) -> None:
        self.step, self.pool, self.attention = step, pool, attention
        self.slot_mappings: dict[tuple[int, int], Tensor] = {}
        """Mappings of the step's tokens, by group and number of KV heads; see `_map_slots`."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        params: AttentionParams,
    ) -> Tensor:
        if key is not None and value is not None:
            self.pool.write(layer, self._map_slots(layer), key, value)
        return self.attention(layer, query, params)

    def find_destination(self, layer: int) -> KVDestination:
        pages = self.step.pages[self.pool.groups[layer]]
        return KVDestination(self.pool.keys[layer], self.pool.values[layer], pages, self.step.slots)

    def _map_slots(self, layer: int) -> Tensor:
        """Map the step's tokens to the vectors of a layer, as `KVPool.map_slots` does; once for all
        layers that have the same mapping."""
        kind = group, heads = self.pool.groups[layer], self.pool.shapes[layer].heads
        assert heads, "a layer attends that has declared no KV"
        if kind not in self.slot_mappings:
            pages = self.step.pages[group]
            self.slot_mappings[kind] = self.pool.map_slots(pages, self.step.slots, heads)
        return self.slot_mappings[kind]

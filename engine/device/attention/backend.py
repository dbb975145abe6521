# pyright: basic
"""The seam between a model and the way its attention is computed over paged KV."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionFn
from continuo.engine.device.step_inputs import StepInputs


class StepAttention(Protocol):
    """The attention of one step, its index tensors made once and used by every layer."""

    def __call__(self, layer: int, query: Tensor, scale: float, window: int | None) -> Tensor:
        """query [T, heads, key_dim] -> [T, heads, value_dim], causal, each token seeing the
        `window` last positions of its own row, itself included (None: all). The keys and values
        of this step's tokens are in the pool already."""
        ...


class AttentionBackend(Protocol):
    """Makes the attention of a step. Has no memory from step to step but buffers."""

    def bind(self, step: StepInputs, pool: KVPool) -> AttentionFn: ...


class PagedAttention:
    """An Attend in two: writes a step's keys and values by torch, then attends."""

    def __init__(self, step: StepInputs, pool: KVPool, attention: StepAttention) -> None:
        self.pool, self.attention = pool, attention
        heads = {shape.heads for shape in pool.shapes}
        lines = {count: pool.map_slots(step.pages, step.slots, count) for count in heads}
        self.slot_mappings = [lines[shape.heads] for shape in pool.shapes]

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

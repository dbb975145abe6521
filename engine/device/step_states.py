# pyright: basic
"""Access of a model's recurrent layers to the states of one step's rows."""

from __future__ import annotations

import torch
from torch import Tensor

from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.step_inputs import StepInputs


class PooledStates:
    """The `StepStates` of one step: each row reads one slot of the pool and writes another."""

    def __init__(self, step: StepInputs, pool: KVPool) -> None:
        self.row_offsets: list[int] = step.row_offsets.tolist()
        self._pool = pool
        self._slots = step.state_slots
        starts = [row for row, start in enumerate(step.starts.tolist()) if start == 0]
        self._new_rows = torch.tensor(starts, device=step.tokens.device) if starts else None

    def read(self, layer: int) -> tuple[Tensor, ...]:
        """Return the state of each row, [R, *shape] for each tensor that the layer declares; zeros
        for a row that starts at position 0."""
        assert self._slots is not None, "the rows of the step have no state slots"
        slots = self._slots[0].clamp(min=0)
        state = tuple(tensor[slots] for tensor in self._pool.states[layer])
        if self._new_rows is not None:
            for tensor in state:
                tensor[self._new_rows] = 0
        return state

    def write(self, layer: int, *state: Tensor) -> None:
        """Write the state of each row after its last token, [R, *shape] for each tensor."""
        assert self._slots is not None, "the rows of the step have no state slots"
        for tensor, value in zip(self._pool.states[layer], state, strict=True):
            tensor[self._slots[1]] = value.to(tensor.dtype)

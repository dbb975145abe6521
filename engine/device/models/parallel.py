# pyright: basic
"""Attention and a state space model side by side (Falcon-H1)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from continuo.engine.architectures.shapes import DecoderShape, ParallelShape, TensorNames
from continuo.engine.device.model import WeightTarget
from continuo.engine.device.models.attention import SelfAttention
from continuo.engine.device.models.layers import ForwardStep
from continuo.engine.device.models.mamba2 import Mamba2


class ParallelMixers:
    """The sum of both, each with factors for its input and its output. Memory: that of both."""

    def __init__(
        self, layer: int, shape: ParallelShape, decoder: DecoderShape, like: Tensor
    ) -> None:
        self.shape = shape
        self.attention = SelfAttention(layer, shape.attention, decoder, like)
        self.mamba = Mamba2(layer, shape.mamba, decoder, like)
        self.memory = replace(self.attention.memory, state=self.mamba.memory.state)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        scale_in, scale_out = self.shape.mamba_scales
        out = self.mamba(x * scale_in, step) * scale_out
        scale_in, scale_out = self.shape.attention_scales
        return out.add_(self.attention(x * scale_in, step), alpha=scale_out)

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        return self.attention.targets(names) | self.mamba.targets(names)

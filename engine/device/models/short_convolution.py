# pyright: basic
"""The gated short convolution of LFM2: out(c * convolution(b * x))."""

from __future__ import annotations

from torch import Tensor

from continuo.engine.architectures.shapes import DecoderShape, ShortConvolutionShape, TensorNames
from continuo.engine.device.model import LayerMemory, StateTensor, WeightTarget
from continuo.engine.device.models.layers import ForwardStep, Linear, prefix_names, whole_target
from continuo.engine.device.models.recurrence import convolve, run_rows


class ShortConvolution:
    """State: the last kernel - 1 inputs of the convolution."""

    def __init__(
        self, layer: int, shape: ShortConvolutionShape, decoder: DecoderShape, like: Tensor
    ) -> None:
        hidden = decoder.hidden
        self.layer = layer
        self.memory = LayerMemory(state=(StateTensor((shape.kernel - 1, hidden)),))
        self.inputs = Linear(hidden, 3 * hidden, like, bias=shape.bias)
        self.weight = like.new_empty(shape.kernel, hidden)
        self.bias = like.new_empty(hidden) if shape.bias else None
        self.out = Linear(hidden, hidden, like, bias=shape.bias)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        b, c, x = self.inputs(x).chunk(3, -1)
        states = step.states
        mixed, past = run_rows(self._advance, states.row_offsets, b * x, states.read(self.layer))
        states.write(self.layer, past)
        return self.out(c * mixed)

    def _advance(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return convolve(x, past, self.weight, self.bias)

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        targets = self.inputs.targets(["in_proj"]) | self.out.targets(["out_proj"])
        targets |= convolution_targets("conv", self.weight, self.bias)
        return prefix_names(f"{names.recurrence}.", targets)


def convolution_targets(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, WeightTarget]:
    """Map the names of a convolution's tensors; checkpoint: [channels, 1, K]."""
    kernel, channels = weight.shape
    targets = {f"{name}.weight": WeightTarget(weight, (channels, 1, kernel), _to_taps)}
    if bias is not None:
        targets[f"{name}.bias"] = whole_target(bias)
    return targets


def _to_taps(weight: Tensor) -> Tensor:
    return weight[:, 0].T

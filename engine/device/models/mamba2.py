# pyright: basic
"""The Mamba-2 layer: a selective state space model (Dao and Gu 2024)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import DecoderShape, Mamba2Shape, TensorNames
from continuo.engine.device.model import LayerMemory, StateTensor, WeightTarget
from continuo.engine.device.models.layers import (
    ForwardStep,
    Linear,
    find_activation,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.recurrence import convolve, run_rows, selective_scan
from continuo.engine.device.models.short_convolution import convolution_targets


class Mamba2:
    """State: the last kernel - 1 inputs of the convolution, and a matrix [head_dim, state] in fp32
    for each head."""

    def __init__(self, layer: int, shape: Mamba2Shape, decoder: DecoderShape, like: Tensor) -> None:
        self.layer, self.shape, self.eps = layer, shape, decoder.eps
        self.inner, self.group_size = shape.heads * shape.head_dim, shape.groups * shape.state
        self.channels = self.inner + 2 * self.group_size
        self.memory = LayerMemory(
            state=(
                StateTensor((shape.kernel - 1, self.channels)),
                StateTensor((shape.heads, shape.head_dim, shape.state), torch.float32),
            )
        )
        # Rows: gates; x, b and c; time steps.
        rows = self.inner + self.channels + shape.heads
        self.inputs = Linear(decoder.hidden, rows, like, bias=shape.proj_bias)
        self.weight = like.new_empty(shape.kernel, self.channels)
        self.bias = like.new_empty(self.channels) if shape.conv_bias else None
        self.act = find_activation(shape.act)
        self.rate, self.time_bias, self.skip = (
            like.new_empty(shape.heads, dtype=torch.float32) for _ in range(3)
        )
        self.norm_weight = None if shape.norm == "none" else like.new_empty(self.inner)
        self.out = Linear(self.inner, decoder.hidden, like, bias=shape.out_bias)
        self.row_scales = None
        if shape.row_scales is not None:
            sizes = (self.inner, self.inner, self.group_size, self.group_size, shape.heads)
            parts = zip(shape.row_scales, sizes, strict=True)
            self.row_scales = like.new_tensor([scale for scale, size in parts for _ in range(size)])

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        states = step.states
        inputs = self.inputs(x)
        if self.row_scales is not None:
            inputs = inputs * self.row_scales
        gate, inputs = inputs[:, : self.inner], inputs[:, self.inner :]
        out, *after = run_rows(self._advance, states.row_offsets, inputs, states.read(self.layer))
        states.write(self.layer, *after)
        return self.out(self._apply_gate(out, F.silu(gate.float()), x.dtype))

    def _apply_gate(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply gate and norm: out, gate [T, inner] fp32 -> [T, inner] in `dtype`."""
        if self.norm_weight is None:
            return (out * gate).to(dtype)
        is_last = self.shape.norm == "before gate"
        groups = (out if is_last else out * gate).unflatten(-1, (self.shape.groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], None, self.eps).flatten(-2)
        if is_last:
            return (self.norm_weight * normed * gate).to(dtype)
        return self.norm_weight * normed.to(dtype)

    def _advance(self, inputs: Tensor, past: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """Advance n sequences by C tokens: inputs [n, C, channels + heads] -> outputs [n, C, inner]
        fp32, and the next state."""
        shape = self.shape
        convolved, past = convolve(inputs[..., : self.channels], past, self.weight, self.bias)
        x, b, c = (
            self.act(convolved).float().split((self.inner, self.group_size, self.group_size), -1)
        )
        x = x.unflatten(-1, (shape.heads, -1)).transpose(1, 2)
        repeats = shape.heads // shape.groups
        b, c = (
            part.unflatten(-1, (shape.groups, -1)).transpose(1, 2).repeat_interleave(repeats, 1)
            for part in (b, c)
        )
        time_step = inputs[..., self.channels :].transpose(1, 2).float()  # [n, heads, C]
        time_step = F.softplus(time_step + self.time_bias[:, None]).clamp(*shape.time_step_limit)
        out, state = selective_scan(x, time_step, self.rate, b, c, state)
        out = out + self.skip[:, None, None] * x
        return out.transpose(1, 2).flatten(-2), past, state

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        targets = convolution_targets("conv1d", self.weight, self.bias)
        targets |= self.inputs.targets(["in_proj"]) | self.out.targets(["out_proj"])
        targets["A_log"] = WeightTarget(self.rate, tuple(self.rate.shape), _to_rate)
        targets["dt_bias"] = whole_target(self.time_bias)
        targets["D"] = whole_target(self.skip)
        if self.norm_weight is not None:
            targets["norm.weight"] = whole_target(self.norm_weight)
        return prefix_names(f"{names.recurrence}.", targets)


def _to_rate(log: Tensor) -> Tensor:
    return -log.float().exp()

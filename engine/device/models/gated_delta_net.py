# pyright: basic
"""The gated delta net of Qwen3-Next, Qwen3.5 and OLMo Hybrid: linear attention whose state is a
matrix per head, updated by the delta rule (Yang et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import DecoderShape, GatedDeltaNetShape, TensorNames
from continuo.engine.device.model import LayerMemory, StateTensor, WeightTarget
from continuo.engine.device.models.layers import (
    ForwardStep,
    Linear,
    find_activation,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.recurrence import convolve, delta_rule, run_rows
from continuo.engine.device.models.short_convolution import convolution_targets

NORM_EPS = 1e-6
"""Added to the squared norm of queries and keys."""


class GatedDeltaNet:
    """State: the last kernel - 1 inputs of the convolution, and a matrix [key_dim, value_dim] in
    fp32 for each value head."""

    def __init__(
        self, layer: int, shape: GatedDeltaNetShape, decoder: DecoderShape, like: Tensor
    ) -> None:
        self.layer, self.shape = layer, shape
        self.eps = decoder.eps if shape.norm_eps is None else shape.norm_eps
        self.key_size = shape.key_heads * shape.key_dim
        self.value_size = shape.value_heads * shape.value_dim
        self.channels = 2 * self.key_size + self.value_size
        heads = shape.value_heads
        self.memory = LayerMemory(
            state=(
                StateTensor((shape.kernel - 1, self.channels)),
                StateTensor((heads, shape.key_dim, shape.value_dim), torch.float32),
            )
        )
        # Rows: queries, keys and values of all heads; gates z; rates b; decays a.
        self.inputs = Linear(
            decoder.hidden, self.channels + self.value_size + 2 * heads, like, bias=False
        )
        self.weight = like.new_empty(shape.kernel, self.channels)
        self.act = find_activation(shape.act)
        self.decay_rate = like.new_empty(heads, dtype=torch.float32)
        self.decay_bias = like.new_empty(heads, dtype=torch.float32)
        self.norm_weight = like.new_empty(shape.value_dim)
        self.out = Linear(self.value_size, decoder.hidden, like, bias=False)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        states, heads = step.states, self.shape.value_heads
        inputs = self.inputs(x)
        channels = self.channels
        gate = inputs[:, channels : channels + self.value_size].view(
            -1, heads, self.shape.value_dim
        )
        mixed = torch.cat((inputs[:, :channels], inputs[:, -2 * heads :]), -1)
        out, *after = run_rows(self._advance, states.row_offsets, mixed, states.read(self.layer))
        states.write(self.layer, *after)
        normed = F.rms_norm(out, out.shape[-1:], None, self.eps).to(x.dtype) * self.norm_weight
        gated = (normed.float() * F.silu(gate.float())).to(x.dtype)
        return self.out(gated.reshape(-1, self.value_size))

    def _advance(self, inputs: Tensor, past: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """Advance n sequences by C tokens: inputs [n, C, channels + 2 heads] -> outputs [n, C,
        heads, value_dim] fp32, and the next state."""
        shape = self.shape
        convolved, past = convolve(inputs[..., : self.channels], past, self.weight, None)
        query, key, value = self.act(convolved).split(
            (self.key_size, self.key_size, self.value_size), -1
        )
        rate, decay = inputs[..., self.channels :].transpose(1, 2).chunk(2, 1)  # [n, heads, C]
        decay = F.softplus(decay.float() + self.decay_bias[:, None]) * self.decay_rate[:, None]
        repeats = shape.value_heads // shape.key_heads
        query, key = (self._normalize(part).repeat_interleave(repeats, 1) for part in (query, key))
        value = value.unflatten(-1, (shape.value_heads, -1)).transpose(1, 2).float()
        query = query * shape.key_dim**-0.5
        rate = rate.sigmoid() * shape.rate_scale
        out, state = delta_rule(query, key, value, decay, rate.float(), state)
        return out.transpose(1, 2), past, state

    def _normalize(self, x: Tensor) -> Tensor:
        """Scale queries or keys [n, C, key_heads * key_dim] to unit length: [n, key_heads, C,
        key_dim]."""
        x = x.unflatten(-1, (self.shape.key_heads, -1)).transpose(1, 2).float()
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        has_one_each = self.shape.projections == "each"
        targets = self.out.targets(["o_proj" if has_one_each else "out_proj"])
        heads = (self.shape.value_heads,)
        targets["A_log"] = WeightTarget(self.decay_rate, heads, _to_decay_rate)
        targets["dt_bias"] = whole_target(self.decay_bias)
        targets["o_norm.weight" if has_one_each else "norm.weight"] = whole_target(self.norm_weight)
        targets |= self._projection_targets() | self._convolution_targets()
        return prefix_names(f"{names.recurrence}.", targets)

    def _convolution_targets(self) -> dict[str, WeightTarget]:
        if self.shape.projections != "each":
            return convolution_targets("conv1d", self.weight, None)
        targets: dict[str, WeightTarget] = {}
        parts = self.weight.split((self.key_size, self.key_size, self.value_size), 1)
        for name, part in zip(("q_conv1d", "k_conv1d", "v_conv1d"), parts, strict=True):
            targets |= convolution_targets(name, part, None)
        return targets

    def _projection_targets(self) -> dict[str, WeightTarget]:
        shape, weight = self.shape, self.inputs.weight
        sizes = (self.channels, self.value_size, shape.value_heads, shape.value_heads)
        if shape.projections == "separate":
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            return self.inputs.targets(names, sizes)
        if shape.projections == "each":
            names = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")
            sizes = (self.key_size, self.key_size, self.value_size, *sizes[1:])
            return self.inputs.targets(names, sizes)
        values = self.value_size // shape.key_heads  # of one key head
        qkvz, ba = weight.split((self.channels + self.value_size, 2 * shape.value_heads))
        per_head = (shape.key_dim, shape.key_dim, values, values)
        repeats = shape.value_heads // shape.key_heads
        return {
            "in_proj_qkvz.weight": WeightTarget(qkvz, tuple(qkvz.shape), _split_heads(per_head)),
            "in_proj_ba.weight": WeightTarget(ba, tuple(ba.shape), _split_heads((repeats,) * 2)),
        }


def _to_decay_rate(log: Tensor) -> Tensor:
    return -log.float().exp()


def _split_heads(rows: tuple[int, ...]):
    """Return the conversion of a matrix whose rows are grouped by head, `rows` of each part, to one
    whose rows are grouped by part."""

    def convert(weight: Tensor) -> Tensor:
        parts = weight.unflatten(0, (-1, sum(rows))).split(rows, 1)
        return torch.cat([part.flatten(0, 1) for part in parts])

    return convert

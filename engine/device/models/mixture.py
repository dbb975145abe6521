# pyright: basic
"""Mixtures of experts: a router chooses for each token the MLPs that compute it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import MixtureShape, TensorNames
from continuo.engine.device.model import WeightTarget
from continuo.engine.device.models.layers import (
    Activation,
    Linear,
    build_mlp,
    find_activation,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.operations import Operations


class Mixture:
    """A mixture of MLPs, whose matrices are stacked: gate and up [expert, 2 * intermediate,
    hidden], or up alone, [expert, intermediate, hidden]; down [expert, hidden, intermediate]."""

    def __init__(self, shape: MixtureShape, hidden: int, like: Tensor) -> None:
        self.shape = shape
        self.router = Linear(hidden, shape.experts, like, bias=shape.router_bias)
        self.choice_bias = None
        if shape.has_choice_bias:
            self.choice_bias = like.new_empty(shape.experts, dtype=torch.float32)
        rows = shape.intermediate * (1 + shape.is_gated)
        self.gate_up = like.new_empty(shape.experts, rows, hidden)
        self.down = like.new_empty(shape.experts, hidden, shape.intermediate)
        self.gate_up_bias = self.down_bias = None
        if shape.expert_bias:
            self.gate_up_bias = like.new_empty(shape.experts, rows)
            self.down_bias = like.new_empty(shape.experts, hidden)
        self.activate = _find_activation(shape)
        self.shared = self.shared_gate = None
        if shape.shared is not None:
            self.shared = build_mlp(shape.shared, hidden, like)
            if shape.shared_has_gate:
                self.shared_gate = Linear(hidden, 1, like, bias=False)

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:
        out = self._compute_experts(x, *self._route(x))
        if self.shared is None:
            return out
        shared = self.shared(x, operations)
        if self.shared_gate is not None:
            shared *= self.shared_gate(x).sigmoid()
        return out + shared

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token: their numbers and weights, each [T, chosen]."""
        shape = self.shape
        if shape.has_fp32_router:
            logits = F.linear(x.float(), self.router.weight.float())
        else:
            logits = self.router(x).float()
        if shape.router == "softmax of chosen":
            weights, experts = logits.topk(shape.chosen)
            return experts, weights.softmax(-1)
        weights = logits.softmax(-1) if shape.router == "softmax" else logits.sigmoid()
        preferences = weights if self.choice_bias is None else weights + self.choice_bias
        experts = preferences.topk(shape.chosen).indices
        weights = weights.gather(-1, experts)
        if shape.normalizes:
            # A sum of sigmoids can be close to 0: transformers adds 1e-6, or 1e-20 in Nemotron-H.
            weights /= weights.sum(-1, keepdim=True) + (1e-6 if shape.router == "sigmoid" else 0.0)
        return experts, weights * shape.weight_scale

    def _compute_experts(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Sum the outputs of the chosen experts, weighted. The (token, expert) pairs are sorted by
        expert, so that each expert's matrices are multiplied by all of its tokens at once."""
        chosen = experts.shape[1]
        order = experts.flatten().argsort(stable=True)
        sorted_experts = experts.flatten()[order]
        counts = torch.bincount(sorted_experts, minlength=self.shape.experts)
        multiply = multiply_grouped if x.is_cuda else multiply_each
        both = multiply(x[order // chosen], self.gate_up, counts)
        if self.gate_up_bias is not None:
            both += self.gate_up_bias[sorted_experts]
        outputs = multiply(self.activate(both), self.down, counts)
        if self.down_bias is not None:
            outputs += self.down_bias[sorted_experts]
        by_token = torch.empty_like(outputs)
        by_token[order] = outputs
        return (by_token.unflatten(0, (-1, chosen)) * weights[..., None].to(x.dtype)).sum(1)

    def targets(self, names: TensorNames, present: set[str], layer: str) -> dict[str, WeightTarget]:
        """Map tensor names to their destinations. `present`: names of all tensors in the
        checkpoint; `layer`: the prefix of this layer's."""
        targets = self.router.targets([names.router])
        if self.choice_bias is not None:
            targets[names.choice_bias] = whole_target(self.choice_bias)
        stacked = f"{layer}{names.mixture}.{names.stacked_gate_up}" in present
        if names.experts == "each" and not stacked:
            targets |= self._targets_of_each_expert(names)
        else:
            targets |= self._stacked_targets(names)
        targets = prefix_names(f"{names.mixture}.", targets)
        if self.shared is not None:
            parts = self.shared.targets(names.shared_gate_up, names.shared_down)
            targets |= prefix_names(f"{names.shared}.", parts)
        if self.shared_gate is not None:
            targets |= self.shared_gate.targets([names.shared_gate])
        return targets

    def _targets_of_each_expert(self, names: TensorNames) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {}
        for expert in range(self.shape.experts):
            parts = self.gate_up[expert].chunk(len(names.expert_gate_up))
            for name, part in zip(names.expert_gate_up, parts, strict=True):
                targets[f"experts.{expert}.{name}.weight"] = whole_target(part)
            down = whole_target(self.down[expert])
            targets[f"experts.{expert}.{names.expert_down}.weight"] = down
        return targets

    def _stacked_targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        gate_up, down = whole_target(self.gate_up), whole_target(self.down)
        if names.experts == "stacked, transposed":
            gate_up = WeightTarget(
                self.gate_up, _transposed(self.gate_up), _split_interleaved_columns
            )
            down = WeightTarget(
                self.down, _transposed(self.down), partial(torch.transpose, dim0=1, dim1=2)
            )
        targets = {names.stacked_gate_up: gate_up, names.stacked_down: down}
        if self.gate_up_bias is not None and self.down_bias is not None:
            bias = WeightTarget(
                self.gate_up_bias, tuple(self.gate_up_bias.shape), _split_interleaved
            )
            targets[f"{names.stacked_gate_up}_bias"] = bias
            targets[f"{names.stacked_down}_bias"] = whole_target(self.down_bias)
        return targets


def multiply_each(x: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Multiply rows of x [P, in] by the matrices of their experts, weights [expert, out, in]: the
    first counts[0] rows by the first matrix, and so on. One product for each expert with rows."""
    parts = x.split(counts.tolist())
    products = (
        F.linear(part, weight) for part, weight in zip(parts, weights, strict=True) if len(part)
    )
    return torch.cat(list(products))


def multiply_grouped(x: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Compute what `multiply_each` does in one kernel, without waiting for `counts` on the host."""
    ends = counts.cumsum(0).to(torch.int32)
    return F.grouped_mm(x, weights.transpose(1, 2), offs=ends)


def _transposed(tensor: Tensor) -> tuple[int, ...]:
    experts, rows, columns = tensor.shape
    return experts, columns, rows


def _split_interleaved(x: Tensor) -> Tensor:
    """Reorder the last dimension from gate, up, gate, up, … to all of gate, then all of up."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


def _split_interleaved_columns(x: Tensor) -> Tensor:
    return _split_interleaved(x).transpose(1, 2)


def _find_activation(shape: MixtureShape) -> Activation:
    """Return the function from the rows of gate and up, or of up alone, to the input of the down
    projection."""
    act = find_activation(shape.act)
    if not shape.is_gated:
        return act
    if shape.clamp is None:
        return lambda both: _gate(both, lambda gate, up: act(gate) * up)
    alpha, limit = shape.clamp

    def clamped(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(gate * alpha)

    return lambda both: _gate(both, clamped)


def _gate(both: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return combine(*both.chunk(2, -1))

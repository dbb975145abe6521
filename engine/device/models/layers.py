# pyright: basic
"""The building blocks of decoder layers, on a flat sequence of tokens.

The T tokens of all rows of a step are concatenated; only `ForwardStep.attend` and
`ForwardStep.states` depend on the rows and on the memory that holds their past. Parameters are
plain tensors, not nn.Modules, because calling a module takes more time than the computation of a
small layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import MlpShape, TensorNames
from continuo.engine.device.model import LayerMemory, PagedAttentionFn, StepStates, WeightTarget
from continuo.engine.device.models.operations import Operations, Rotation
from continuo.engine.device.quantization import QuantizedMatrix
from continuo.engine.errors import ModelError

Activation = Callable[[Tensor], Tensor]
GELU_TANH = partial(F.gelu, approximate="tanh")


def square_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "relu": F.relu,
    "relu2": square_relu,
}


def find_activation(name: str) -> Activation:
    """Return an activation function by its name in transformers. Raises ModelError if it is
    unknown."""
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    # transformers.activations is slow to import, and few checkpoints need it.
    from transformers.activations import ACT2FN  # noqa: PLC0415

    if name not in ACT2FN:
        raise ModelError(f"config.json: activation {name!r} is not supported")
    return ACT2FN[name]


@dataclass(slots=True)
class ForwardStep:
    """Inputs that the layers of one forward pass share."""

    operations: Operations
    attend: PagedAttentionFn
    states: StepStates
    rope: dict[str, Rotation]
    """Cosines and sines of the step's positions, by set of rotary parameters."""


class Mixer(Protocol):
    """The part of a layer that mixes the tokens of a row: attention or a recurrence."""

    memory: LayerMemory

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor: ...

    def targets(self, names: TensorNames) -> dict[str, WeightTarget]:
        """Map tensor names to their destinations."""
        ...


def whole_target(tensor: Tensor) -> WeightTarget:
    return WeightTarget(tensor, tuple(tensor.shape))


def prefix_names(prefix: str, targets: dict[str, WeightTarget]) -> dict[str, WeightTarget]:
    return {f"{prefix}{name}": target for name, target in targets.items()}


class Linear:
    """A linear layer y = x W^T + b, W [out, in]. Several checkpoint matrices may be stacked along
    `out`."""

    def __init__(
        self, size_in: int, size_out: int, like: Tensor, *, bias: bool, tied: Tensor | None = None
    ) -> None:
        """Args:
        size_in: values of an input vector.
        size_out: values of an output vector, of all stacked matrices together.
        like: a tensor whose dtype and device the parameters get.
        bias: whether b is added.
        tied: a matrix that is used as weight and belongs to something else as well, such as the
            embedding. None: the layer allocates its own.
        """
        self.size_in, self.size_out = size_in, size_out
        self.weight = like.new_empty(size_out, size_in) if tied is None else tied
        self.bias = like.new_empty(size_out) if bias else None
        self.is_tied = tied is not None
        self.quantized: dict[int, QuantizedMatrix] = {}
        """Quantized rows, by the number of the first: none or all, once the layer is loaded. They
        replace the weight, which is empty then unless it is tied."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.quantized:  # they have not been packed for the C code
            self.dequantize()
        return F.linear(x, self.weight, self.bias)

    def targets(self, names: Sequence[str], rows: Sequence[int] = ()) -> dict[str, WeightTarget]:
        """Map the names of the checkpoint tensors to their rows of the layer. `names`: the stacked
        matrices, in order; `rows`: number of rows of each, unless there is only one."""
        targets: dict[str, WeightTarget] = {}
        top = 0
        for name, count in zip(names, rows if len(names) > 1 else [len(self.weight)], strict=True):
            targets[f"{name}.weight"] = replace(
                whole_target(self.weight[top : top + count]),
                layer=self,
                first_row=top,
            )
            if self.bias is not None:
                targets[f"{name}.bias"] = whole_target(self.bias[top : top + count])
            top += count
        return targets

    def settle(self) -> None:
        """Free the weight if all rows have been loaded quantized. Dequantize them if only some
        have."""
        rows = sum(len(matrix.data) for matrix in self.quantized.values())
        if rows < self.size_out:
            self.dequantize()
        elif not self.is_tied:
            self.weight = self.weight.new_empty(0, self.size_in)

    def dequantize(self) -> None:
        """Replace the quantized rows by elements. A tied weight has those already."""
        if not len(self.weight):
            self.weight = self.weight.new_empty(self.size_out, self.size_in)
        for top, matrix in self.take_quantized():
            if not self.is_tied:
                self.weight[top : top + len(matrix.data)] = matrix.dequantize()

    def take_quantized(self) -> list[tuple[int, QuantizedMatrix]]:
        """Remove the quantized rows, and return them in order."""
        taken = sorted(self.quantized.items())
        self.quantized.clear()
        return taken


class Mlp:
    """The MLP down(act(up(x)))."""

    def __init__(self, shape: MlpShape, hidden: int, like: Tensor) -> None:
        self.act = find_activation(shape.act)
        self.up = Linear(hidden, shape.intermediate, like, bias=shape.bias)
        self.down = Linear(shape.intermediate, hidden, like, bias=shape.bias)

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:  # noqa: ARG002
        return self.down(self.act(self.up(x)))

    def targets(self, up: Sequence[str], down: str) -> dict[str, WeightTarget]:
        return self.up.targets(up) | self.down.targets([down])


class GatedMlp:
    """The gated MLP down(act(gate(x)) * up(x)), with gate and up in one matrix."""

    def __init__(self, shape: MlpShape, hidden: int, like: Tensor) -> None:
        self.intermediate, self.scale = shape.intermediate, shape.output_scale
        self.act = _scale_input(find_activation(shape.act), shape.gate_scale)
        self.gate_up = Linear(hidden, 2 * self.intermediate, like, bias=shape.bias)
        self.down = Linear(self.intermediate, hidden, like, bias=shape.bias)

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:
        out = self.down(operations.gate(self.gate_up(x), self.act))
        return out if self.scale == 1.0 else out * self.scale

    def targets(self, gate_up: Sequence[str], down: str) -> dict[str, WeightTarget]:
        return self.gate_up.targets(gate_up, [self.intermediate] * 2) | self.down.targets([down])


def build_mlp(shape: MlpShape, hidden: int, like: Tensor) -> Mlp | GatedMlp:
    """Create an MLP for vectors of `hidden` values; its parameters get the dtype and the device of
    `like`. Raises ModelError for an activation that is not supported."""
    return (GatedMlp if shape.is_gated else Mlp)(shape, hidden, like)


def _scale_input(act: Activation, scale: float) -> Activation:
    return act if scale == 1.0 else lambda x: act(x * scale)

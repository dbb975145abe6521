# pyright: basic
"""The parts of Gemma 4 that no other family has: inputs for each layer beside the embedding, and a
mixture of experts beside the dense MLP."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import DecoderShape, MixtureShape, TensorNames
from continuo.engine.device.model import WeightTarget
from continuo.engine.device.models.layers import (
    Linear,
    find_activation,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.mixture import Mixture
from continuo.engine.device.models.rms_norm import RMSNorm


class LayerInputs:
    """The inputs of all layers, `size` elements of each token for each of L layers: the mean of an
    embedding of the id and a projection of the ordinary embedding, scaled to unit variance."""

    def __init__(self, decoder: DecoderShape, like: Tensor) -> None:
        assert decoder.layer_inputs is not None
        shape, count = decoder.layer_inputs, len(decoder.layers)
        self.count = count
        self.embedding = like.new_empty(shape.vocab_size, count * shape.size)
        # Rounded to the dtype of the embeddings, as transformers does.
        self.embedding_scale = like.new_tensor(shape.size**0.5)
        self.projection = Linear(decoder.hidden, count * shape.size, like, bias=False)
        self.projection_scale = decoder.hidden**-0.5
        self.norm = RMSNorm(shape.size, decoder.eps, like)

    def __call__(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the inputs, one tensor [T, size] for each layer. `x`: the scaled embeddings."""
        embedded = F.embedding(tokens, self.embedding) * self.embedding_scale
        projected = (self.projection(x) * self.projection_scale).unflatten(-1, (self.count, -1))
        both = self.norm(projected) + embedded.unflatten(-1, (self.count, -1))
        return (both * 2.0**-0.5).unbind(1)

    def targets(self) -> dict[str, WeightTarget]:
        targets = {"embed_tokens_per_layer.weight": whole_target(self.embedding)}
        targets |= self.projection.targets(["per_layer_model_projection"])
        return targets | {"per_layer_projection_norm.weight": self.norm.target()}


class LayerInputGate:
    """The part of a layer that adds its input: x + norm(out(act(gate(x)) * input))."""

    def __init__(self, decoder: DecoderShape, like: Tensor) -> None:
        assert decoder.layer_inputs is not None
        size = decoder.layer_inputs.size
        self.act = find_activation(decoder.layer_inputs.act)
        self.gate = Linear(decoder.hidden, size, like, bias=False)
        self.out = Linear(size, decoder.hidden, like, bias=False)
        self.norm = RMSNorm(decoder.hidden, decoder.eps, like)

    def __call__(self, x: Tensor, layer_input: Tensor) -> Tensor:
        return x + self.norm(self.out(self.act(self.gate(x)) * layer_input))

    def targets(self) -> dict[str, WeightTarget]:
        targets = self.gate.targets(["per_layer_input_gate"])
        targets |= self.out.targets(["per_layer_projection"])
        return targets | {"post_per_layer_input_norm.weight": self.norm.target()}


class MixtureBeside(Mixture):
    """A mixture whose output is added to that of the dense MLP, both normalized. The router has an
    input of its own, the normalized x times `router_scale`, and a factor for each expert."""

    def __init__(self, shape: MixtureShape, decoder: DecoderShape, like: Tensor) -> None:
        super().__init__(shape, decoder.hidden, like)
        self.router_scale = like.new_empty(decoder.hidden)
        self.expert_scale = like.new_empty(shape.experts)
        self.input_scale, self.eps = decoder.hidden**-0.5, decoder.eps
        self.input_norm, self.output_norm, self.dense_norm = (
            RMSNorm(decoder.hidden, decoder.eps, like) for _ in range(3)
        )

    def add_to(self, dense: Tensor, x: Tensor) -> Tensor:
        """Return the sum. `dense`: the output of the dense MLP; `x`: the input of the layer's
        second half, before any norm."""
        normed = F.rms_norm(x, x.shape[-1:], None, self.eps)
        experts, weights = self._route(normed * self.router_scale * self.input_scale)
        weights = weights * self.expert_scale[experts]
        mixed = self._compute_experts(self.input_norm(x), experts, weights)
        return self.dense_norm(dense) + self.output_norm(mixed)

    def targets(self, names: TensorNames, present: set[str], layer: str) -> dict[str, WeightTarget]:
        """Map tensor names to their destinations, as `Mixture.targets` does."""
        del names, present, layer
        experts = {
            "gate_up_proj": whole_target(self.gate_up),
            "down_proj": whole_target(self.down),
        }
        return {
            **self.router.targets(["router.proj"]),
            "router.scale": whole_target(self.router_scale),
            "router.per_expert_scale": whole_target(self.expert_scale),
            **prefix_names("experts.", experts),
            "post_feedforward_layernorm_1.weight": self.dense_norm.target(),
            "pre_feedforward_layernorm_2.weight": self.input_norm.target(),
            "post_feedforward_layernorm_2.weight": self.output_norm.target(),
        }

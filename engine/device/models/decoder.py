# pyright: basic
"""Our decoder: embedding, layers, norm and head of a model that a `DecoderShape` describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import (
    AttentionShape,
    DecoderShape,
    GatedDeltaNetShape,
    LayerShape,
    Mamba2Shape,
    MixerShape,
    MixtureShape,
    MlpShape,
    ParallelShape,
    ShortConvolutionShape,
    TensorNames,
)
from continuo.engine.device.model import LayerMemory, PagedAttentionFn, StepStates, WeightTarget
from continuo.engine.device.models import rope
from continuo.engine.device.models.attention import SelfAttention
from continuo.engine.device.models.gated_delta_net import GatedDeltaNet
from continuo.engine.device.models.gemma4 import LayerInputGate, LayerInputs, MixtureBeside
from continuo.engine.device.models.layers import (
    ForwardStep,
    GatedMlp,
    Linear,
    Mixer,
    Mlp,
    build_mlp,
    prefix_names,
    whole_target,
)
from continuo.engine.device.models.mamba2 import Mamba2
from continuo.engine.device.models.mixture import Mixture
from continuo.engine.device.models.operations import PLAIN, Operations
from continuo.engine.device.models.parallel import ParallelMixers
from continuo.engine.device.models.rms_norm import RMSNorm
from continuo.engine.device.models.short_convolution import ShortConvolution

PREFIXES = (
    ("model.", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("backbone.", ""),
)
"""Prefixes of the tensors of a model, and of its head, in a checkpoint: of a model of text alone,
and of the text part of a model of text and images."""


class DecoderLayer:
    """A decoder layer: x + mixer(norm(x)), then x + mlp(norm(x)). In some families the outputs of
    mixer and MLP are normalized and scaled, too; in others a layer has but one of the two."""

    def __init__(self, number: int, shape: LayerShape, decoder: DecoderShape, like: Tensor) -> None:
        self.mixer = _build_mixer(number, shape.mixer, decoder, like)
        self.memory = LayerMemory() if self.mixer is None else self.mixer.memory
        self.mlp = _build_mlp(shape.mlp, decoder, like)
        self.input_norm = self.mlp_norm = None
        if shape.has_input_norms:
            self.input_norm, self.mlp_norm = _norms(2, decoder, like)
        self.mixer_output_norm = self.mlp_output_norm = None
        if decoder.has_output_norms or not shape.has_input_norms:
            self.mixer_output_norm, self.mlp_output_norm = _norms(2, decoder, like)
        self.scale = decoder.residual_scale
        self.mixture_beside = self.input_gate = self.scalar = None
        if shape.mixture_beside is not None:
            self.mixture_beside = MixtureBeside(shape.mixture_beside, decoder, like)
        if decoder.layer_inputs is not None:
            self.input_gate = LayerInputGate(decoder, like)
        if decoder.has_layer_scalars:
            self.scalar = like.new_empty(1)

    def __call__(
        self,
        x: Tensor,
        addend: Tensor | None,
        step: ForwardStep,
        layer_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer for x + scale * addend, and return its output in the same form, so that
        each sum is computed together with the norm that follows it. `addend` None: zero."""
        if self.mixer is not None:
            x, normed = self._add(x, addend, step, self.input_norm)
            addend = self.mixer(normed, step)
            if self.mixer_output_norm is not None:
                addend = self.mixer_output_norm(addend)
        if self.mlp is None:
            return x, addend
        x, normed = self._add(x, addend, step, self.mlp_norm)
        out = self.mlp(normed, step.operations)
        if self.mixture_beside is not None:
            out = self.mixture_beside.add_to(out, x)
        if self.mlp_output_norm is not None:
            out = self.mlp_output_norm(out)
        if self.input_gate is None and self.scalar is None:
            return x, out
        x = x.add_(out, alpha=self.scale)
        if self.input_gate is not None and layer_input is not None:
            x = self.input_gate(x, layer_input)
        return x if self.scalar is None else x * self.scalar, None

    def _add(
        self, x: Tensor, addend: Tensor | None, step: ForwardStep, norm: RMSNorm | None
    ) -> tuple[Tensor, Tensor]:
        """Compute y = x + scale * addend; return y and norm(y), or y twice without a norm."""
        if norm is not None:
            return step.operations.add_norm(x, addend, self.scale, norm)
        if addend is not None:
            x = x.add_(addend, alpha=self.scale)
        return x, x

    def targets(
        self, names: TensorNames, present: set[str], prefix: str
    ) -> dict[str, WeightTarget]:
        """Map tensor names to their destinations. `present`: names of all tensors in the
        checkpoint; `prefix`: that of this layer's."""
        targets: dict[str, WeightTarget] = {}
        if self.mixer is not None:
            targets |= self.mixer.targets(names)
            if self.input_norm is not None:
                targets[f"{names.input_norm}.weight"] = self.input_norm.target()
        if self.mlp is not None and self.mlp_norm is not None:
            targets[f"{names.mlp_norm}.weight"] = self.mlp_norm.target()
        if self.mixer_output_norm is not None and self.mlp_output_norm is not None:
            targets[f"{names.mixer_output_norm}.weight"] = self.mixer_output_norm.target()
            targets[f"{names.mlp_output_norm}.weight"] = self.mlp_output_norm.target()
        if isinstance(self.mlp, Mixture):
            targets |= self.mlp.targets(names, present, prefix)
        elif self.mlp is not None:
            targets |= prefix_names(f"{names.mlp}.", self.mlp.targets(names.gate_up, names.down))
        if self.mixture_beside is not None:
            targets |= self.mixture_beside.targets(names, present, prefix)
        if self.input_gate is not None:
            targets |= self.input_gate.targets()
        if self.scalar is not None:
            targets["layer_scalar"] = whole_target(self.scalar)
        return prefix_names(prefix, targets)


def _norms(count: int, decoder: DecoderShape, like: Tensor) -> Iterable[RMSNorm]:
    is_centered = decoder.has_centered_norms
    return [
        RMSNorm(decoder.hidden, decoder.eps, like, is_centered=is_centered) for _ in range(count)
    ]


def _build_mixer(
    number: int, shape: MixerShape | None, decoder: DecoderShape, like: Tensor
) -> Mixer | None:
    match shape:
        case AttentionShape():
            return SelfAttention(number, shape, decoder, like)
        case ShortConvolutionShape():
            return ShortConvolution(number, shape, decoder, like)
        case GatedDeltaNetShape():
            return GatedDeltaNet(number, shape, decoder, like)
        case Mamba2Shape():
            return Mamba2(number, shape, decoder, like)
        case ParallelShape():
            return ParallelMixers(number, shape, decoder, like)
        case None:
            return None


def _build_mlp(
    shape: MlpShape | MixtureShape | None, decoder: DecoderShape, like: Tensor
) -> Mixture | Mlp | GatedMlp | None:
    match shape:
        case MixtureShape():
            return Mixture(shape, decoder.hidden, like)
        case MlpShape():
            return build_mlp(shape, decoder.hidden, like)
        case None:
            return None


class Decoder:
    """A decoder-only model, for the T tokens of several rows."""

    def __init__(
        self,
        shape: DecoderShape,
        config: Any,
        length: int,
        like: Tensor,
        operations: Operations = PLAIN,
    ) -> None:
        """Allocate the parameters, uninitialized.

        Args:
        shape: sizes and options of the layers; windows of at least `length` positions are removed
            from it.
        config: source of the rotary parameters: the text part of the checkpoint's config.json.
        length: number of positions in the rotary tables: the maximum tokens of a sequence.
        like: a tensor whose dtype and device the parameters get; its content is not used.
        operations: fused operations of the device, called in every layer; default: plain torch.
        """
        self.shape = shape = _without_wide_windows(shape, length)
        self.operations = operations
        self.vocab_size = shape.vocab_size
        self.embedding = like.new_empty(shape.vocab_size, shape.hidden)
        self.layers = [
            DecoderLayer(number, layer, shape, like) for number, layer in enumerate(shape.layers)
        ]
        self.memory: list[LayerMemory] = [layer.memory for layer in self.layers]
        [self.norm] = _norms(1, shape, like)
        tied = self.embedding if shape.has_tied_embeddings else None
        self.head = Linear(shape.hidden, shape.vocab_size, like, bias=False, tied=tied)
        self.layer_inputs = None if shape.layer_inputs is None else LayerInputs(shape, like)
        # Rounded to the dtype of the embeddings, as transformers does.
        self.embedding_scale = like.new_tensor(shape.embedding_scale)
        self.rope_tables = {
            each.rope: rope.build_table(
                config, each.head_dim, length, like, each.rope, rotates_part=each.rotates_part
            )
            for each in (layer.attention for layer in shape.layers)
            if each is not None and each.rope is not None
        }

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        logit_indices: Tensor | None,
        states: StepStates,
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] int64 -> logits [S, vocab].

        `logit_indices` [S]: indices of the tokens whose logits are computed; None: all T, in order.
        """
        x, addend = self.run_layers(tokens, positions, attend, states)
        return self.compute_logits(x, addend, logit_indices)

    def run_layers(
        self, tokens: Tensor, positions: Tensor, attend: PagedAttentionFn, states: StepStates
    ) -> tuple[Tensor, Tensor | None]:
        """Run all layers. Returns the output of the last in the form of a layer's."""
        x = F.embedding(tokens, self.embedding)
        if self.shape.embedding_scale != 1.0:
            x = x * self.embedding_scale
        rotations = {}
        for key, table in self.rope_tables.items():
            cos, sin = table[positions].unsqueeze(2).unbind(1)  # each [T, 1, dim]
            rotations[key] = cos, sin
        step = ForwardStep(self.operations, attend, states, rotations)
        layer_inputs = [None] * len(self.layers)
        if self.layer_inputs is not None:
            layer_inputs = self.layer_inputs(tokens, x)
        addend = None
        for layer, layer_input in zip(self.layers, layer_inputs, strict=True):
            x, addend = layer(x, addend, step, layer_input)
        return x, addend

    def compute_logits(
        self, x: Tensor, addend: Tensor | None, logit_indices: Tensor | None
    ) -> Tensor:
        """Compute the logits [S, vocab] from the output of the last layer, which may be
        overwritten."""
        if logit_indices is not None:
            x = x.index_select(0, logit_indices)
            addend = None if addend is None else addend.index_select(0, logit_indices)
        _, normed = self.operations.add_norm(x, addend, self.shape.residual_scale, self.norm)
        logits = self.head(normed)
        if self.shape.logit_scale != 1.0:
            logits = logits * self.shape.logit_scale
        softcap = self.shape.logit_softcap
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def weight_targets(self, present: set[str]) -> dict[str, WeightTarget]:
        """Map the names of all required checkpoint tensors to their destinations. `present`: names
        of all tensors in the checkpoint, which decide between the names that a family may use."""
        names = self.shape.names
        at = f"{names.embedding}.weight"
        body, head = next((pair for pair in PREFIXES if f"{pair[0]}{at}" in present), PREFIXES[0])
        head_target = self.head.targets(["head"])["head.weight"]
        targets = {f"{body}{names.embedding}.weight": whole_target(self.embedding)}
        for number, layer in enumerate(self.layers):
            targets |= layer.targets(names, present, f"{body}layers.{number}.")
        if self.layer_inputs is not None:
            targets |= prefix_names(body, self.layer_inputs.targets())
        targets[f"{body}{names.final_norm}.weight"] = self.norm.target()
        at = f"{head}lm_head.weight"
        if self.head.is_tied:
            at = f"{body}{names.embedding}.weight"
        targets[at if at in present else "lm_head.weight"] = head_target
        return targets


def _without_wide_windows(shape: DecoderShape, length: int) -> DecoderShape:
    """Remove the windows that no sequence of `length` tokens outgrows."""

    def widen(layer: LayerShape) -> LayerShape:
        mixer = layer.mixer
        if isinstance(mixer, AttentionShape) and (mixer.window or 0) >= length:
            return replace(layer, mixer=replace(mixer, window=None))
        return layer

    return replace(shape, layers=tuple(map(widen, shape.layers)))


def empty_tensor(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a tensor without elements, which carries a dtype and a device: the argument `like` of
    functions and classes that create tensors."""
    return torch.empty(0, dtype=dtype, device=device)

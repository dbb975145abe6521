"""The sizes of models, computed from the shapes of their layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from continuo.engine.architectures.config import read_config, read_json
from continuo.engine.architectures.families import read_shape
from continuo.engine.architectures.known import KNOWN_ARCHITECTURES, find_refusal
from continuo.engine.architectures.refusals import unsupported_architecture
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
)
from continuo.engine.architectures.sizes import ModelSize
from continuo.engine.errors import ModelError

BLOCK = 32
"""Weights of a row that share a scale: a matrix with other rows is not quantized."""

Parts = Iterator[tuple[int, ...]]
"""Shapes of weights. Those of two numbers are the matrices [in, out] that can be quantized."""


def measure_folder(folder: Path) -> ModelSize | None:
    """Return the size of the model in a folder in the Hugging Face layout, from its config.json and
    the names of its tensors, if it has any. Returns None if it is left to transformers. Raises
    ModelError, also for an architecture that is known to be refused."""
    config = read_config(folder)
    shape = read_shape(config, _read_tensor_names(folder))
    architecture = (config.architectures or [config.model_type])[0]
    if shape is None:
        if (reason := find_refusal(architecture)) is not None:
            raise unsupported_architecture(folder, architecture, reason)
        return None
    runs_in_c = any(x.name == architecture and x.way == "C" for x in KNOWN_ARCHITECTURES)
    context: int = config.get_text_config().max_position_embeddings
    return measure_shape(shape, context, runs_in_c=runs_in_c)


def _read_tensor_names(folder: Path) -> set[str]:
    """Return the names of the tensors of a checkpoint in safetensors; none if it cannot be read."""
    try:
        if (index := folder / "model.safetensors.index.json").exists():
            return set(read_json(index).get("weight_map", ()))
        with (folder / "model.safetensors").open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
        return set(json.loads(header))
    except (ModelError, OSError, ValueError, OverflowError, MemoryError):
        return set()


def measure_shape(shape: DecoderShape, context: int, *, runs_in_c: bool) -> ModelSize:
    """Return the size of a model. `context`: its longest, in tokens; `runs_in_c`: whether our C
    code runs it, which alone keeps weights quantized."""
    parts = [part for layer in shape.layers for part in _layer_parts(layer, shape)]
    parts += [(shape.hidden,)]  # the final norm
    embedding = shape.vocab_size * shape.hidden
    if not shape.has_tied_embeddings:
        parts.append((shape.hidden, shape.vocab_size))
    if (inputs := shape.layer_inputs) is not None:
        size = len(shape.layers) * inputs.size
        parts += [(1, inputs.vocab_size, size), (shape.hidden, size), (inputs.size,)]
    has_mixture = any(isinstance(layer.mlp, MixtureShape) for layer in shape.layers)
    is_quantizable = runs_in_c and not has_mixture
    can_tie = shape.has_tied_embeddings and shape.hidden % BLOCK == 0
    states = [_state_elements(layer.mixer, shape.hidden) for layer in shape.layers]
    return ModelSize(
        parameters=embedding + sum(map(prod, parts)),
        quantized=sum(map(prod, filter(_is_quantizable, parts))) if is_quantizable else 0,
        tied_head=embedding if is_quantizable and can_tie else 0,
        embedding=embedding,
        token_elements=_token_elements(shape),
        state_elements=sum(inputs for inputs, _ in states),
        state_elements_fp32=sum(matrix for _, matrix in states),
        context=context,
    )


def _is_quantizable(part: tuple[int, ...]) -> bool:
    return len(part) == 2 and part[0] % BLOCK == 0


def _token_elements(shape: DecoderShape) -> dict[int | None, int]:
    elements: dict[int | None, int] = {}
    for layer in shape.layers:
        attention = layer.attention
        if attention is not None and attention.kv_layer is None:
            kv = 2 * attention.kv_heads * attention.head_dim
            elements[attention.window] = elements.get(attention.window, 0) + kv
    return elements


def _state_elements(mixer: MixerShape | None, hidden: int) -> tuple[int, int]:
    """Return the elements of the state of a layer: the last inputs of a convolution, in the dtype
    of the model, and a matrix in fp32 for each head."""
    match mixer:
        case ShortConvolutionShape():
            return (mixer.kernel - 1) * hidden, 0
        case GatedDeltaNetShape():
            channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            matrix = mixer.value_heads * mixer.key_dim * mixer.value_dim
            return (mixer.kernel - 1) * channels, matrix
        case Mamba2Shape():
            channels = mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state
            return (mixer.kernel - 1) * channels, mixer.heads * mixer.head_dim * mixer.state
        case ParallelShape():
            return _state_elements(mixer.mamba, hidden)
        case AttentionShape() | None:
            return 0, 0


def _layer_parts(layer: LayerShape, decoder: DecoderShape) -> Parts:
    hidden = decoder.hidden
    norms = 1 + (decoder.has_output_norms and layer.has_input_norms)
    if layer.mixer is not None:
        yield from [(hidden,)] * norms
        yield from _mixer_parts(layer.mixer, hidden)
    if layer.mlp is not None:
        yield from [(hidden,)] * norms
    if isinstance(layer.mlp, MixtureShape):
        yield from _mixture_parts(layer.mlp, hidden)
    elif layer.mlp is not None:
        yield from _mlp_parts(layer.mlp, hidden)
    if (mixture := layer.mixture_beside) is not None:
        yield from _mixture_parts(mixture, hidden)
        yield from ((mixture.experts,), *[(hidden,)] * 4)
    if (inputs := decoder.layer_inputs) is not None:
        yield from ((hidden, inputs.size), (inputs.size, hidden), (hidden,))
    if decoder.has_layer_scalars:
        yield (1,)


def _mixer_parts(mixer: MixerShape, hidden: int) -> Parts:
    match mixer:
        case AttentionShape():
            dim, has_kv = mixer.head_dim, mixer.kv_layer is None
            kv_heads = mixer.kv_heads * (2 - mixer.key_is_value) if has_kv else 0
            rows = (mixer.heads * (1 + mixer.has_gate) + kv_heads) * dim
            yield from ((hidden, rows), (mixer.heads * dim, hidden))
            yield (rows * mixer.qkv_bias + hidden * mixer.out_bias,)
            yield (dim * mixer.qk_norm * (1 + has_kv) + mixer.heads * mixer.has_sinks,)
            yield ((mixer.heads + mixer.kv_heads) * dim * mixer.norms_all_heads,)
        case ShortConvolutionShape():
            yield from ((hidden, 3 * hidden), (hidden, hidden))
            yield ((mixer.kernel + 5 * mixer.bias) * hidden,)
        case GatedDeltaNetShape():
            values = mixer.value_heads * mixer.value_dim
            channels = 2 * mixer.key_heads * mixer.key_dim + values
            inputs = hidden, channels + values + 2 * mixer.value_heads
            # Interleaved projections are reordered at load, and not quantized.
            yield (1, *inputs) if mixer.projections == "interleaved" else inputs
            yield from ((values, hidden), (mixer.kernel * channels,))
            yield (2 * mixer.value_heads + mixer.value_dim,)
        case Mamba2Shape():
            inner = mixer.heads * mixer.head_dim
            channels = inner + 2 * mixer.groups * mixer.state
            rows = inner + channels + mixer.heads
            yield from ((hidden, rows), (inner, hidden))
            yield (rows * mixer.proj_bias + hidden * mixer.out_bias,)
            yield ((mixer.kernel + mixer.conv_bias) * channels + 3 * mixer.heads,)
            yield (inner * (mixer.norm != "none"),)
        case ParallelShape():
            yield from _mixer_parts(mixer.attention, hidden)
            yield from _mixer_parts(mixer.mamba, hidden)


def _mlp_parts(mlp: MlpShape, hidden: int) -> Parts:
    rows = mlp.intermediate * (1 + mlp.is_gated)
    yield from ((hidden, rows), (mlp.intermediate, hidden))
    yield ((rows + hidden) * mlp.bias,)


def _mixture_parts(mixture: MixtureShape, hidden: int) -> Parts:
    experts, inner = mixture.experts, mixture.intermediate
    rows = inner * (1 + mixture.is_gated)
    yield from ((hidden, experts), (experts, rows + inner, hidden))
    yield (experts * (mixture.router_bias + mixture.has_choice_bias),)
    yield (experts * (rows + hidden) * mixture.expert_bias,)
    if mixture.shared is not None:
        yield from _mlp_parts(mixture.shared, hidden)
        yield (hidden * mixture.shared_has_gate,)

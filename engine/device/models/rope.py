# pyright: basic
"""Rotary tables: cosines and sines of the angles by which queries and keys are rotated.

The table has one row per position, so that the embedding of a token never depends on other rows of
the batch. The common scalings of frequencies are computed here, the others by transformers, which
is slow to import. One of them changes the frequencies with the length (longrope): here position p
uses the frequencies of length p + 1, as transformers does when it decodes one token at a time with
a cache. Another one does so beyond the trained length alone (dynamic), at which the context ends.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from continuo.engine.errors import ModelError


def read_parameters(config: Any, layer_type: str = "") -> dict:
    """Read the rope parameters of a config in their standard form: those of `layer_type`, if each
    type of layers has its own, else the only ones.

    Raises ModelError for a rope type that transformers does not know.
    """
    config.standardize_rope_params()
    parameters = config.rope_parameters or {}
    if layer_type:
        parameters = parameters[layer_type]
    kind = parameters.get("rope_type", "default")
    if kind not in SCALINGS and kind not in _scalings_of_transformers():
        raise ModelError(f"config.json: unknown rope type {kind!r}")
    return parameters


def _scalings_of_transformers() -> dict[str, Any]:
    # Slow to import, and few checkpoints need it.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415

    return ROPE_INIT_FUNCTIONS


def read_all_parameters(config: Any) -> list[dict]:
    """Read all sets of rope parameters: some models have one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def context_limit(config: Any) -> int:
    """Return the longest context of the model, in tokens: `max_position_embeddings`, extended by
    the factor of the rope scaling unless the config states an extended length already.

    Dynamic scaling does not extend it: beyond the trained length, the output of transformers
    depends on the chunks of the prompt.
    """
    limit = config.max_position_embeddings
    sets = read_all_parameters(config)
    if len(sets) > 1:  # In such a model, layers with a window are not scaled.
        return limit
    if sets == [{}]:  # No layer has rotary positions.
        return limit
    rope = read_parameters(config)
    if rope.get("rope_type") in ("linear", "yarn") and rope.get("factor"):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * rope["factor"]))
    return limit


def build_table(
    config: Any,
    head_dim: int,
    length: int,
    like: Tensor,
    layer_type: str = "",
    *,
    rotates_part: bool = False,
) -> Tensor:
    """Build the table [length, 2, dim] in the dtype and on the device of `like`: cosines, then
    sines whose first half is negated (see `layers.rotate`). dim is head_dim, or less if only a part
    of each head is rotated, which `rotates_part` allows."""
    positions = torch.arange(length, dtype=torch.float32)
    rope = read_parameters(config, layer_type)
    if not rotates_part:
        rope = _rotate_whole_heads(rope)
    frequencies, scaling = _frequencies(config, rope, head_dim, length, layer_type)
    angles = positions[:, None] * frequencies  # [length, dim / 2]
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    rows = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return rows.to(like.device, like.dtype)


def _rotate_whole_heads(rope: dict) -> dict:
    """Return the rope parameters of a model that rotates whole heads. Raises ModelError for a
    scaling that transformers computes for a part of each head, with which its models fail."""
    part, kind = rope.get("partial_rotary_factor"), rope.get("rope_type", "default")
    if part in (None, 1.0) or kind == "proportional":  # which rotates whole heads, some by zero
        return rope
    if kind != "default":
        raise ModelError(
            f"config.json: partial_rotary_factor is {part} beside the rope type {kind!r}, but a "
            "model of this type rotates whole heads; remove it"
        )
    return rope | {"partial_rotary_factor": 1.0}


def _frequencies(
    config: Any, rope: dict, head_dim: int, length: int, layer_type: str
) -> tuple[Tensor, float]:
    """Compute the inverse frequencies, [dim / 2], or [length, dim / 2] if they change with the
    length; and the factor by which cosines and sines are scaled."""
    kind = rope.get("rope_type", "default")
    if kind in SCALINGS:
        dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return SCALINGS[kind](rope["rope_theta"] ** exponents, rope)
    init = partial(
        _scalings_of_transformers()[kind],
        config,
        torch.device("cpu"),
        layer_type=layer_type or None,
    )
    frequencies, scaling = init()
    trained = rope.get("original_max_position_embeddings")
    if kind != "longrope" or trained is None or length <= trained:
        return frequencies, scaling
    frequencies = frequencies.repeat(length, 1)
    frequencies[trained:] = init(seq_len=trained + 1)[0]
    return frequencies, scaling


def _default(periods: Tensor, _rope: dict) -> tuple[Tensor, float]:
    return 1.0 / periods, 1.0


def _linear(periods: Tensor, rope: dict) -> tuple[Tensor, float]:
    return 1.0 / periods / rope["factor"], 1.0


def _llama3(periods: Tensor, rope: dict) -> tuple[Tensor, float]:
    """Divide low frequencies by the factor, and interpolate between low and high ones."""
    frequencies, factor = 1.0 / periods, rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    trained = rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / frequencies
    scaled = torch.where(wavelengths > trained / low, frequencies / factor, frequencies)
    smooth = (trained / wavelengths - low) / (high - low)
    smoothed = (1 - smooth) * scaled / factor + smooth * scaled
    is_between = (wavelengths >= trained / high) & (wavelengths <= trained / low)
    return torch.where(is_between, smoothed, scaled), 1.0


YARN_BETA_FAST, YARN_BETA_SLOW = 32, 1
"""Default numbers of rotations within the trained length between which YaRN interpolates."""


def _yarn(periods: Tensor, rope: dict) -> tuple[Tensor, float]:
    """YaRN: interpolate between frequencies divided by the factor, for those that rotate seldom
    within the trained length, and unchanged ones."""
    factor, theta, dim = rope["factor"], rope["rope_theta"], 2 * len(periods)
    trained = rope["original_max_position_embeddings"]

    def find_dim(rotations: float) -> float:
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = find_dim(rope.get("beta_fast") or YARN_BETA_FAST)
    high = find_dim(rope.get("beta_slow") or YARN_BETA_SLOW)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = 1.0 / (factor * periods) * ramp + 1.0 / periods * (1 - ramp)
    if (scale := rope.get("attention_factor")) is not None:
        return frequencies, scale
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if over and under:
        return frequencies, _yarn_scale(factor, over) / _yarn_scale(factor, under)
    return frequencies, _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, strength: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


SCALINGS = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""Functions from theta ** exponents, [dim / 2], and the rope parameters, to the frequencies and the
factor by which cosines and sines are scaled."""

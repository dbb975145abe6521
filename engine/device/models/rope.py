# pyright: basic
"""Rotary tables, computed with transformers' own rope functions.

The table has one row per position, so that the embedding of a token never depends on other rows of
the batch. Two scalings change their frequencies with the length (dynamic, longrope): here position
p uses the frequencies of length p + 1, as transformers does when it decodes one token at a time
with a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from continuo.engine.errors import ModelError


def read_parameters(config: PretrainedConfig) -> dict:
    """Read the config's rope parameters in their standard form.

    Raises ModelError for a rope type that transformers does not know.
    """
    config.standardize_rope_params()
    parameters = config.rope_parameters or {}
    kind = parameters.get("rope_type", "default")
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        raise ModelError(f"config.json: unknown rope type {kind!r}")
    return parameters


def read_all_parameters(config: PretrainedConfig) -> list[dict]:
    """Read all sets of rope parameters: some models have one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def context_limit(config: PretrainedConfig) -> int:
    """Return the longest context of the model, in tokens: `max_position_embeddings`, extended by
    the factor of the rope scaling unless the config states an extended length already."""
    rope = read_parameters(config)
    limit = config.max_position_embeddings
    if rope.get("rope_type") in ("linear", "dynamic", "yarn") and rope.get("factor"):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * rope["factor"]))
    return limit


def build_table(config: PretrainedConfig, head_dim: int, length: int, like: Tensor) -> Tensor:
    """Build the table [length, 2, dim] in the dtype and on the device of `like`: cosines, then
    sines whose first half is negated (see `layers.rotate`)."""
    positions = torch.arange(length, dtype=torch.float32)
    frequencies, scaling = _frequencies(config, head_dim, length)
    angles = positions[:, None] * frequencies  # [length, dim / 2]
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    rows = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return rows.to(like.device, like.dtype)


def _frequencies(config: PretrainedConfig, head_dim: int, length: int) -> tuple[Tensor, float]:
    """Compute the inverse frequencies, [dim / 2], or [length, dim / 2] if they change with the
    length; and the factor by which cosines and sines are scaled."""
    rope = read_parameters(config)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    init = ROPE_INIT_FUNCTIONS[kind]
    frequencies, scaling = init(config, torch.device("cpu"))
    if frequencies.shape[-1] * 2 != head_dim:
        raise ModelError("config.json: partial rotary embedding is not supported here")
    first_changed = {
        "dynamic": config.max_position_embeddings,
        "longrope": rope.get("original_max_position_embeddings"),
    }.get(kind)
    if first_changed is None or length <= first_changed:
        return frequencies, scaling
    frequencies = frequencies.repeat(length, 1)
    if kind == "longrope":
        long_frequencies = init(config, torch.device("cpu"), seq_len=first_changed + 1)[0]
        frequencies[first_changed:] = long_frequencies
    else:
        for position in range(first_changed, length):
            frequencies[position] = init(config, torch.device("cpu"), seq_len=position + 1)[0]
    return frequencies, scaling

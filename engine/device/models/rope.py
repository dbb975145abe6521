# pyright: basic
"""Rotary tables from transformers' own rope functions. Knows positions, not tokens.

One table row per position, so that what a token sees never depends on its neighbours in a batch.
Two scalings change their frequencies with the length (dynamic, longrope): here position p uses the
frequencies that belong to length p + 1, which is what transformers does when it decodes one token
at a time with a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from continuo.engine.errors import ModelError


def read_parameters(config: PretrainedConfig) -> dict:
    """The config's rope parameters in their standard form.

    Raises ModelError for a rope type that transformers does not know.
    """
    config.standardize_rope_params()
    found = config.rope_parameters or {}
    kind = found.get("rope_type", "default")
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        raise ModelError(f"config.json: rope type {kind!r} is not known")
    return found


def read_all_parameters(config: PretrainedConfig) -> list[dict]:
    """The rope parameters of every kind of layer: some models have one set per layer type."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [found]


def context_limit(config: PretrainedConfig) -> int:
    """Tokens of context the model is made for: its positions, stretched where the scaling says so
    and `max_position_embeddings` has not been stretched already."""
    rope = read_parameters(config)
    limit = config.max_position_embeddings
    if rope.get("rope_type") in ("linear", "dynamic", "yarn") and rope.get("factor"):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * rope["factor"]))
    return limit


def build_table(config: PretrainedConfig, head_dim: int, length: int, like: Tensor) -> Tensor:
    """[length, 2, dim] in the dtype and on the device of `like`: cosines, then sines whose first
    half is negated (see `layers.rotate`)."""
    positions = torch.arange(length, dtype=torch.float32)
    frequencies, scaling = _frequencies(config, head_dim, length)
    angles = positions[:, None] * frequencies  # [length, dim / 2]
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    rows = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return rows.to(like.device, like.dtype)


def _frequencies(config: PretrainedConfig, head_dim: int, length: int) -> tuple[Tensor, float]:
    """Inverse frequencies [dim / 2], or [length, dim / 2] where they change with the length."""
    rope = read_parameters(config)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    init = ROPE_INIT_FUNCTIONS[kind]
    frequencies, scaling = init(config, torch.device("cpu"))
    if frequencies.shape[-1] * 2 != head_dim:
        raise ModelError("config.json: partial rotary embedding is not supported here")
    changes = {
        "dynamic": config.max_position_embeddings,
        "longrope": rope.get("original_max_position_embeddings"),
    }.get(kind)
    if changes is None or length <= changes:
        return frequencies, scaling
    frequencies = frequencies.repeat(length, 1)
    if kind == "longrope":
        frequencies[changes:] = init(config, torch.device("cpu"), seq_len=changes + 1)[0]
    else:
        for position in range(changes, length):
            frequencies[position] = init(config, torch.device("cpu"), seq_len=position + 1)[0]
    return frequencies, scaling

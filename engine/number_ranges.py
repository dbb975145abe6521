"""Ranges of the numbers of a config: checked before anything is computed or allocated by them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple, cast

from continuo.engine.errors import ModelError


class Range(NamedTuple):
    """`least` itself is excluded if `is_open`."""

    least: float
    most: float
    is_open: bool = False


_EPSILON, _FREQUENCY = Range(0.0, 1.0), Range(0.0, 1e15, is_open=True)
_FACTOR, _COUNT = Range(0.0, 1e6, is_open=True), Range(1, 1 << 24)
RANGES: dict[str, Range] = {
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "block_norm_eps"),
        _EPSILON,
    ),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "theta"), _FREQUENCY),
    **dict.fromkeys(
        (
            *("factor", "attention_factor", "low_freq_factor", "high_freq_factor"),
            *("beta_fast", "beta_slow", "query_pre_attn_scalar"),
        ),
        _FACTOR,
    ),
    "partial_rotary_factor": Range(0.0, 1.0, is_open=True),
    "num_hidden_layers": Range(1, 4096),
    **dict.fromkeys(
        ("hidden_size", "vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads"),
        _COUNT,
    ),
    "max_position_embeddings": Range(1, 1 << 31),
}
"""Ranges by the name of the field, in a config or its parts. Other numbers must be finite."""
UNBOUNDED = ("time_step_limit",)
"""Fields that may be infinite."""


def find_number_problem(name: str, value: float) -> str | None:
    """Return why a number cannot be that of a field, as the end of a sentence about it."""
    allowed = RANGES.get(name)
    if not math.isfinite(value):
        return f"is {value}, which is not finite"
    if allowed is None:
        return None
    is_low = value <= allowed.least if allowed.is_open else value < allowed.least
    if not is_low and value <= allowed.most:
        return None
    bound = "more than" if allowed.is_open else "at least"
    return f"is {value:g}; it must be {bound} {allowed.least:g} and at most {allowed.most:g}"


def check_numbers(path: Path, values: dict[str, Any]) -> None:
    """Check the numbers of a config.json and of its parts. Raises ModelError."""
    unchecked: list[tuple[str, object]] = list(values.items())
    while unchecked:
        name, value = unchecked.pop()
        if isinstance(value, dict):
            unchecked += cast("dict[str, object]", value).items()
        elif isinstance(value, list):
            unchecked += [(name, item) for item in cast("list[object]", value)]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            problem = None if name in UNBOUNDED else find_number_problem(name, value)
            if problem is not None:
                raise ModelError(f"{path}: {name} {problem}")

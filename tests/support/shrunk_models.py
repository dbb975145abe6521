"""Small random models of any causal architecture of transformers: what its config states beyond the
sizes that all have is made small by the name of the field."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers as tf

from tests.support.transformers_oracle import SMALL_CONFIG, small_model

LIMITS: list[tuple[Callable[[str], bool], int]] = [
    (lambda name: "per_tok" in name or name in ("moe_k", "moe_topk", "top_k_experts"), 2),
    (lambda name: "intermediate" in name, 24),
    (lambda name: "expert" in name, 4),
    (lambda name: "rank" in name, 16),
    (lambda name: name in ("n_group", "topk_group", "first_k_dense_replace"), 1),
    (lambda name: name == "sliding_window", 20),
    (lambda name: name.endswith("_heads"), 4),
    (lambda name: name.endswith(("head_dim", "_dim")), 16),
    (lambda name: name.endswith("_size"), 131),
]
"""The largest value of an integer by its name; the first that fits counts."""


def shrunk(kind: str, **differences: Any) -> Callable[..., Any]:
    """Return the maker of a small model with the config `<kind>Config`. `differences`: fields of it
    that are as given."""
    return partial(_make, kind, differences)


def _make(kind: str, differences: dict[str, Any], **more: Any) -> Any:
    differences = differences | more
    default: dict[str, Any] = getattr(tf, f"{kind}Config")(**(SMALL_CONFIG | differences)).to_dict()
    if "kv_lora_rank" in default:  # as many heads of keys as of queries
        differences = {"num_key_value_heads": 4} | differences
    sizes = {
        name: limit
        for name, value in default.items()
        if type(value) is int
        and name not in differences
        and name not in SMALL_CONFIG
        and (limit := _find_limit(name)) is not None
        and value > limit
    }
    return small_model(kind, **(sizes | differences))


def _find_limit(name: str) -> int | None:
    return next((limit for fits, limit in LIMITS if fits(name.lower())), None)

"""Kinds of layer memory for tests on the null device, with pools as small as can be."""

import random
from typing import Any

from continuo.engine.batch import WindowGroup
from continuo.engine.core.cache.state_pool import ROW_SLOTS

MEMORY_KINDS = (
    "full + window",
    "window",
    "full + state",
    "full + window + state",
    "two windows",
    "state",
)


def random_memory(
    source: random.Random, kind: str, page_size: int, batched_tokens: int
) -> dict[str, Any]:
    """Draw the fields of a Geometry for a model whose layers have these kinds of memory. Each pool
    holds at least one decoding row, and may hold a few or many."""
    parts = kind.split(" + ")
    windows: list[WindowGroup] = []
    for _ in range(2 * ("two windows" in parts) or ("window" in parts)):
        window = source.choice([w for w in range(2, 12) if w not in [x.window for x in windows]])
        least = -(-window // page_size) + 3
        pages = least + source.choice([0, 3, 12, 40])
        windows.append(WindowGroup(window, pages, source.choice([0, 8, 60])))
    has_state = "state" in parts
    return {
        "windows": tuple(windows),
        "state_slots": ROW_SLOTS + source.choice([1, 2, 5, 30]) if has_state else 0,
        "host_state_slots": source.choice([0, 2, 9]) if has_state else 0,
        "has_full_layers": "full" in parts,
    }

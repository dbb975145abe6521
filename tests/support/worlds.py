"""Worlds: the sizes of an engine in which random histories are lived, drawn from a seed.

A crowded world has all at once that moves KV about. Six sessions of two to four groups share a pool
for one or two of them. There are drafts, a host tier, every kind of layer memory, and pages of 1 to
256 tokens. The tests of each of these find its own faults; a crowded world finds those that need
several.
"""

import random
from typing import Any, NamedTuple

from continuo.engine.batch import WindowGroup
from continuo.engine.core.cache.state_pool import ROW_SLOTS
from continuo.engine.core.schedule import Scheduler
from tests.support.retracting import RetractingScheduler

MEMORY_KINDS = (
    "full + window",
    "window",
    "full + state",
    "full + window + state",
    "two windows",
    "state",
)
CROWD = 1.2, 2.2
"""Bounds of the pool, as a multiple of what one session needs."""


class World(NamedTuple):
    pages: int
    page_size: int
    session_tokens: int
    """Tokens that one session may have: at most those of the pool."""
    host_pages: int
    batched_tokens: int
    rows: int
    ahead: int
    """Steps that may be in flight when a step is launched."""
    has_drafts: bool
    has_heads: bool
    """Whether the prompts of all sessions begin alike."""
    append_max: int
    output_max: int
    talk: float
    """Share of the actions that append and generate."""
    sessions: int
    weights: tuple[float, ...]
    """Weight of each group."""
    max_group_share: float
    failing: float
    """Share of the steps that fail."""
    audit_every: int
    """Launches and collections from one audit of the cache to the next."""
    scheduler: type[Scheduler]
    memory: dict[str, Any]
    """Further fields of Geometry: the pools of windows and states."""

    def group(self, session: int) -> tuple[str, float]:
        """Return the group of a session by its number, and the weight of the group."""
        number = session % len(self.weights)
        return f"group {number}", self.weights[number]


def crowded_world(
    source: random.Random,
    kind: str | None = None,
    *,
    page_size: int | None = None,
    session_tokens: int | None = None,
) -> World:
    """Draw a crowded world. `kind`: what its layers remember; None: any kind. `page_size`,
    `session_tokens`: those of the world, if they are not drawn."""
    kind = kind or source.choice(["full", *MEMORY_KINDS])
    page_size = page_size or source.choice([1, 2, 4, 16, 16, 256])
    if session_tokens is None:
        session_tokens = source.randint(max(20, page_size), max(60, 5 * page_size // 2))
    needed = -(-session_tokens // page_size)
    pages = max(round(needed * source.uniform(*CROWD)), needed + 1)
    batched_tokens = source.choice([5, 16, 64, 300])
    return World(
        pages=pages,
        page_size=page_size,
        session_tokens=session_tokens,
        host_pages=source.choice([0, needed // 2 + 1, 4 * pages]),
        batched_tokens=batched_tokens,
        rows=source.choice([2, 4, 8]),
        ahead=source.randint(0, 1),
        has_drafts=source.random() < 0.5,
        has_heads=source.random() < 0.3,
        append_max=max(9, session_tokens // 3),
        output_max=max(12, session_tokens // 8),
        talk=0.7,
        sessions=6,
        weights=(1.0, 1.0, source.choice([1.0, 3.0]), 1.0)[: source.randint(2, 4)],
        max_group_share=source.choice([1.0, 1.0, 1.0, 0.7, 0.4]),
        failing=source.choice([0.0, 0.0, 0.02]),
        audit_every=7,
        scheduler=Scheduler,
        memory=random_memory(source, kind, page_size, window_max=max(12, session_tokens // 2)),
    )


def small_world(source: random.Random, kind: str, *, has_drafts: bool, has_heads: bool) -> World:
    """Draw a world with small pages and a pool of any number of sessions, which may be alone."""
    ahead = source.randint(0, 1)
    page_size = source.choice([1, 2, 4])
    batched_tokens = source.choice([2, 5, 16])
    pages = source.randint(10, 40)
    return World(
        pages=pages,
        page_size=page_size,
        session_tokens=pages * page_size,
        host_pages=source.choice([0, 6, 60]),
        batched_tokens=batched_tokens,
        rows=source.choice([1, 2, 8]),
        ahead=ahead,
        has_drafts=has_drafts,
        has_heads=has_heads,
        append_max=9,
        output_max=12,
        talk=0.0,
        sessions=5,
        weights=(1.0, 1.0),
        max_group_share=1.0,
        failing=0.02,
        audit_every=1,
        scheduler=source.choice([Scheduler, RetractingScheduler]),
        memory=random_memory(source, kind, page_size),
    )


def random_memory(
    source: random.Random, kind: str, page_size: int, *, window_max: int = 12
) -> dict[str, Any]:
    """Draw the fields of a Geometry for a model whose layers have these kinds of memory. Each pool
    holds at least one decoding row, and may hold a few or many."""
    parts = kind.split(" + ")
    windows: list[WindowGroup] = []
    for _ in range(2 * ("two windows" in parts) or ("window" in parts)):
        used = [x.window for x in windows]
        window = source.choice([w for w in range(2, window_max) if w not in used])
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

"""Placing: which engine a session goes to. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from continuo.engine.wire.messages import EngineLoad


class PlacementCandidate(NamedTuple):
    """An engine that answers."""

    incarnation: str
    load: EngineLoad
    """As it said last."""
    placed_sessions: int
    """Sessions that were placed there since."""


def choose_engine(
    candidates: Sequence[PlacementCandidate], preferred: str | None = None
) -> int | None:
    """Index of the engine for a session: the `wanted` incarnation, which may have its KV, else the
    one with most room. None: nobody takes sessions."""
    open_ones = [(n, one) for n, one in enumerate(candidates) if not one.load.draining]
    for n, one in open_ones:
        if preferred is not None and one.incarnation == preferred:
            return n
    if not open_ones:
        return None
    return min(open_ones, key=lambda numbered: _measure_fullness(numbered[1]))[0]


def _measure_fullness(one: PlacementCandidate) -> tuple[float, int]:
    """What runs out first decides; where that is much the same, how many there are."""
    load = one.load
    share = max(load.turns / load.rows, load.pages_leased / load.pages_total)
    return round(share, 1), load.sessions + one.placed_sessions

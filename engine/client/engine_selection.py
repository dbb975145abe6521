"""Selection of an engine for a session. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from continuo.engine.wire.messages import EngineLoad


class PlacementCandidate(NamedTuple):
    """A responsive engine, as a candidate for a session."""

    incarnation: str
    load: EngineLoad
    """Load that the engine last reported."""
    placed_sessions: int
    """Number of sessions placed on the engine since it reported `load`."""


def choose_engine(
    candidates: Sequence[PlacementCandidate], preferred: str | None = None
) -> int | None:
    """Return the index of the engine for a session: the `preferred` incarnation, which may hold its
    KV, else the least loaded one. Returns None if all are draining."""
    accepting = [(n, engine) for n, engine in enumerate(candidates) if not engine.load.draining]
    for n, engine in accepting:
        if preferred is not None and engine.incarnation == preferred:
            return n
    if not accepting:
        return None
    return min(accepting, key=lambda numbered: _measure_fullness(numbered[1]))[0]


def _measure_fullness(engine: PlacementCandidate) -> tuple[float, int]:
    """Return the sort key of an engine: the share in use of its scarcest resource, rounded to
    tenths, then its number of sessions."""
    load = engine.load
    share = max(load.turns / load.rows, load.pages_leased / load.pages_total)
    return round(share, 1), load.sessions + engine.placed_sessions

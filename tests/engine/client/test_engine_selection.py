"""Tests of placement: a session is placed on the engine that may hold its KV, else by load."""

import pytest

from continuo.engine.client.engine_selection import PlacementCandidate, choose_engine
from continuo.engine.wire.messages import EngineLoad


def engine(
    name: str = "", *, turns: int = 0, leased: int = 0, sessions: int = 0, placed: int = 0
) -> PlacementCandidate:
    """Return a candidate of 10 rows and 100 pages."""
    load = EngineLoad(sessions=sessions, turns=turns, rows=10, pages_leased=leased, pages_total=100)
    return PlacementCandidate(name, load, placed)


def draining_engine(name: str = "") -> PlacementCandidate:
    return PlacementCandidate(name, EngineLoad(draining=True), 0)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        pytest.param([], None, id="no engine"),
        pytest.param([draining_engine(), draining_engine()], None, id="all are draining"),
        pytest.param(
            [draining_engine(), engine(turns=10, leased=100)], 1, id="full before draining"
        ),
        pytest.param([engine(turns=10), engine(turns=5)], 1, id="rows"),
        pytest.param([engine(turns=2), engine(turns=12)], 0, id="rows and queue"),
        pytest.param([engine(leased=20), engine(leased=90)], 0, id="pages"),
        pytest.param([engine(turns=9, leased=5), engine(turns=5, leased=50)], 1, id="rows run out"),
        pytest.param([engine(leased=90), engine(turns=6, leased=5)], 1, id="pages run out"),
        pytest.param(
            [engine(leased=90, sessions=1), engine(sessions=50)], 1, id="load before session count"
        ),
        pytest.param(
            [engine(leased=52, sessions=3), engine(leased=49, sessions=9)],
            0,
            id="session count at similar load",
        ),
        pytest.param(
            [engine(sessions=3, placed=2), engine(sessions=4)], 1, id="recent placements count"
        ),
        pytest.param([engine(), engine()], 0, id="first of equals"),
    ],
)
def test_new_session_is_placed_on_the_least_loaded_engine(
    candidates: list[PlacementCandidate], chosen: int | None
) -> None:
    assert choose_engine(candidates) == chosen


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        pytest.param(
            [engine("a"), engine("b", turns=10, leased=100)], 1, id="preferred though full"
        ),
        pytest.param([engine("a", turns=9), engine("c")], 1, id="preferred not connected"),
        pytest.param(
            [engine("a", turns=9), draining_engine("b"), engine("c")], 2, id="preferred is draining"
        ),
        pytest.param([draining_engine("b")], None, id="only engine is draining"),
    ],
)
def test_engine_that_may_hold_the_kv_is_preferred(
    candidates: list[PlacementCandidate], chosen: int | None
) -> None:
    assert choose_engine(candidates, preferred="b") == chosen

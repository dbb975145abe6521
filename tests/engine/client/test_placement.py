"""Which engine a session goes to: the one that may have its KV, else where there is room."""

import pytest

from continuo.engine.client.placement import PlacementCandidate, choose_engine
from continuo.engine.wire.messages import EngineLoad


def engine(
    name: str = "", *, turns: int = 0, leased: int = 0, sessions: int = 0, placed: int = 0
) -> PlacementCandidate:
    """Of 10 rows and 100 pages."""
    load = EngineLoad(sessions=sessions, turns=turns, rows=10, pages_leased=leased, pages_total=100)
    return PlacementCandidate(name, load, placed)


def leaving(name: str = "") -> PlacementCandidate:
    return PlacementCandidate(name, EngineLoad(draining=True), 0)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        pytest.param([], None, id="there is none"),
        pytest.param([leaving(), leaving()], None, id="all of them go"),
        pytest.param([leaving(), engine(turns=10, leased=100)], 1, id="rather full than going"),
        pytest.param([engine(turns=10), engine(turns=5)], 1, id="rows"),
        pytest.param([engine(turns=2), engine(turns=12)], 0, id="rows, and a queue behind them"),
        pytest.param([engine(leased=20), engine(leased=90)], 0, id="pages"),
        pytest.param([engine(turns=9, leased=5), engine(turns=5, leased=50)], 1, id="rows run out"),
        pytest.param([engine(leased=90), engine(turns=6, leased=5)], 1, id="pages run out"),
        pytest.param([engine(leased=90, sessions=1), engine(sessions=50)], 1, id="not by heads"),
        pytest.param([engine(leased=52, sessions=3), engine(leased=49, sessions=9)], 0, id="same"),
        pytest.param([engine(sessions=3, placed=2), engine(sessions=4)], 1, id="just placed count"),
        pytest.param([engine(), engine()], 0, id="the first of equals"),
    ],
)
def test_a_new_session_goes_where_there_is_room(
    candidates: list[PlacementCandidate], chosen: int | None
) -> None:
    assert choose_engine(candidates) == chosen


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        pytest.param([engine("a"), engine("b", turns=10, leased=100)], 1, id="though it is full"),
        pytest.param([engine("a", turns=9), engine("c")], 1, id="it is not there"),
        pytest.param([engine("a", turns=9), leaving("b"), engine("c")], 2, id="it goes"),
        pytest.param([leaving("b")], None, id="it goes, and is the only one"),
    ],
)
def test_one_that_may_have_its_kv_is_wanted(
    candidates: list[PlacementCandidate], chosen: int | None
) -> None:
    assert choose_engine(candidates, preferred="b") == chosen

"""Tests of fairness: younger turns never starve the oldest waiting turn. Steps are counted."""

import pytest

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


class BackgroundTurns:
    """Sessions that each begin a new turn as soon as their last one has ended."""

    def __init__(self, desk: CoreHarness, count: int) -> None:
        self.desk = desk
        self.turns = dict.fromkeys((f"background{n}" for n in range(count)), 0)
        for n, session in enumerate(self.turns):
            desk.open(session)
            desk.append(session, [n, 1, 2])
        desk.run()

    def begin_turns(self) -> None:
        for n, (session, turns) in enumerate(self.turns.items()):
            if not self.desk.sequence(session).is_busy:
                self.turns[session] = turns + 1
                self.desk.rewind(session, 3)
                self.desk.generate(session, 4 + n, str(turns))


def steps_until_ended(
    desk: CoreHarness, session: str, background: BackgroundTurns, ahead: int
) -> int:
    for step in range(400):
        background.begin_turns()
        launched = desk.launch()
        if launched is None or desk.steps_in_flight > ahead:
            desk.collect()
        if desk.has_turn_ended(session):
            return step
    raise AssertionError("the turn never ended")


@AHEAD
@pytest.mark.parametrize("owed", [10, 40])
def test_oldest_turn_does_not_starve_for_pages(ahead: int, owed: int) -> None:
    """Younger turns fill the pool and are in flight at every plan, so cannot be retracted then."""
    desk = CoreHarness(pages=12, page_size=4)
    background = BackgroundTurns(desk, 4)
    desk.open("oldest")
    prompt = [n % 90 for n in range(owed)]
    desk.append("oldest", prompt)
    desk.generate("oldest", 2)
    assert steps_until_ended(desk, "oldest", background, ahead) < 30
    assert desk.turn_ids("oldest") == oracle(prompt, 2)


@AHEAD
def test_oldest_turn_does_not_starve_for_rows(ahead: int) -> None:
    """More short turns than rows of a step are always ready beside a long prompt."""
    desk = CoreHarness(pages=400, page_size=4, batched_tokens=64, rows=4)
    background = BackgroundTurns(desk, 12)
    desk.open("oldest")
    prompt = [n % 90 for n in range(200)]
    desk.append("oldest", prompt)
    desk.generate("oldest", 2)
    assert steps_until_ended(desk, "oldest", background, ahead) < 60
    assert desk.turn_ids("oldest") == oracle(prompt, 2)

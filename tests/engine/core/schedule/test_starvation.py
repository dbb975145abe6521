"""Tests of fairness: younger turns never starve the oldest waiting turn. Steps are counted."""

import pytest

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


class BackgroundTurns:
    """Sessions that each begin a new turn as soon as their last one has ended."""

    def __init__(self, core: CoreHarness, count: int) -> None:
        self.core = core
        self.turns = dict.fromkeys((f"background{n}" for n in range(count)), 0)
        for n, session in enumerate(self.turns):
            core.open(session)
            core.append(session, [n, 1, 2])
        core.run()

    def begin_turns(self) -> None:
        for n, (session, turns) in enumerate(self.turns.items()):
            if not self.core.sequence(session).is_busy:
                self.turns[session] = turns + 1
                self.core.rewind(session, 3)
                self.core.generate(session, 4 + n, str(turns))


def steps_until_ended(
    core: CoreHarness, session: str, background: BackgroundTurns, ahead: int
) -> int:
    for step in range(400):
        background.begin_turns()
        launched = core.launch()
        if launched is None or core.steps_in_flight > ahead:
            core.collect()
        if core.has_turn_ended(session):
            return step
    raise AssertionError("the turn never ended")


@AHEAD
@pytest.mark.parametrize("owed", [10, 40])
def test_oldest_turn_does_not_starve_for_pages(ahead: int, owed: int) -> None:
    """Younger turns fill the pool and are in flight at every plan, so cannot be retracted then."""
    core = CoreHarness(pages=12, page_size=4)
    background = BackgroundTurns(core, 4)
    core.open("oldest")
    prompt = [n % 90 for n in range(owed)]
    core.append("oldest", prompt)
    core.generate("oldest", 2)
    assert steps_until_ended(core, "oldest", background, ahead) < 30
    assert core.turn_ids("oldest") == oracle(prompt, 2)


@AHEAD
def test_oldest_turn_does_not_starve_for_rows(ahead: int) -> None:
    """More short turns than rows of a step are always ready beside a long prompt."""
    core = CoreHarness(pages=400, page_size=4, batched_tokens=64, rows=4)
    background = BackgroundTurns(core, 12)
    core.open("oldest")
    prompt = [n % 90 for n in range(200)]
    core.append("oldest", prompt)
    core.generate("oldest", 2)
    assert steps_until_ended(core, "oldest", background, ahead) < 60
    assert core.turn_ids("oldest") == oracle(prompt, 2)

"""Nobody starves: whatever younger turns do, the oldest that waits goes on. Steps are counted."""

import pytest

from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


class Chatter:
    """Sessions that never stop talking: each begins a new turn as soon as one has ended."""

    def __init__(self, desk: Desk, count: int) -> None:
        self.desk = desk
        self.turns = dict.fromkeys((f"chatter{n}" for n in range(count)), 0)
        for n, session in enumerate(self.turns):
            desk.open(session)
            desk.append(session, [n, 1, 2])
        desk.run()

    def go_on(self) -> None:
        for n, (session, turns) in enumerate(self.turns.items()):
            if not self.desk.sequence(session).is_busy:
                self.turns[session] = turns + 1
                self.desk.rewind(session, 3)
                self.desk.generate(session, 4 + n, str(turns))


def steps_until_ended(desk: Desk, session: str, chatter: Chatter, ahead: int) -> int:
    for step in range(400):
        chatter.go_on()
        launched = desk.launch()
        if launched is None or desk.flying > ahead:
            desk.collect()
        if desk.has_ended(session):
            return step
    raise AssertionError("it never ended")


@AHEAD
@pytest.mark.parametrize("owed", [10, 40])
def test_of_pages(ahead: int, owed: int) -> None:
    """Younger turns fill the pool, and are in flight at every plan: never to be retracted then."""
    desk = Desk(pages=12, page_size=4)
    chatter = Chatter(desk, 4)
    desk.open("waits")
    prompt = [n % 90 for n in range(owed)]
    desk.append("waits", prompt)
    desk.generate("waits", 2)
    assert steps_until_ended(desk, "waits", chatter, ahead) < 30
    assert desk.said("waits") == oracle(prompt, 2)


@AHEAD
def test_of_rows(ahead: int) -> None:
    """More short turns than a step has rows, all of them again and again before a long prompt."""
    desk = Desk(pages=400, page_size=4, batched_tokens=64, rows=4)
    chatter = Chatter(desk, 12)
    desk.open("waits")
    prompt = [n % 90 for n in range(200)]
    desk.append("waits", prompt)
    desk.generate("waits", 2)
    assert steps_until_ended(desk, "waits", chatter, ahead) < 60
    assert desk.said("waits") == oracle(prompt, 2)

"""A scheduler under which nothing stays: turns are retracted, idle sessions evicted."""

import random
from array import array

from continuo.engine.core.schedule import Scheduler, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence

RETRACT_EVERY = 3
"""Steps."""


class DisturbedScheduler(Scheduler):
    """Before every third step it retracts a turn, though never the oldest, as the real one never
    would, and takes pages from all that is idle. Where steps run ahead it first lets what is in
    flight come back: a turn in flight cannot be retracted."""

    steps = 0

    def plan(self) -> StepPlan:
        if self.steps % RETRACT_EVERY == RETRACT_EVERY - 1:
            if any(s.in_flight for s in self._turns):
                return StepPlan([], StepLoad())
            self._disturb(random.Random(self.steps))
        plan = super().plan()
        self.steps += bool(plan.rows)
        return plan

    def _disturb(self, source: random.Random) -> None:
        if able := self._younger_admitted():
            self.retract(source.choice(able))
        greedy = self.cache.open("greedy")
        tokens = source.randint(0, self.cache.available_pages()) * self.cache.page_size
        if tokens and self.cache.reserve(greedy, tokens):
            self.cache.commit(greedy, tokens, 0)
        self.cache.close(greedy, array("i"), 0)

    def _younger_admitted(self) -> list[Sequence]:
        return [s for s in list(self._turns)[1:] if s.turn and s.turn.is_admitted]

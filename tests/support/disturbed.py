"""Schedulers for random lives: one keeps retracting turns and evicting the pages of idle sessions,
one discards each step that may be discarded."""

import math
import random
from array import array

import msgspec

from continuo.engine.core.schedule import Scheduler, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence

RETRACT_EVERY = 3
"""Number of steps from one retraction to the next."""


class ImpatientScheduler(Scheduler):
    """Scheduler that discards steps that only prefill for each short turn, however much is lost."""

    def plan(self) -> StepPlan:
        plan = super().plan()
        if not plan.discardable_s:
            return plan
        return msgspec.structs.replace(plan, discardable_s=math.inf)


class DisturbedScheduler(Scheduler):
    """Scheduler that, before every third step, retracts a random turn and evicts pages of idle
    sessions.

    The oldest turn is never retracted, as in the real scheduler. If steps run ahead, the scheduler
    first waits for the steps in flight, because a turn in flight cannot be retracted.
    """

    steps = 0

    def plan(self) -> StepPlan:
        if self.steps % RETRACT_EVERY == RETRACT_EVERY - 1:
            if any(s.in_flight for s in self.admission.turns):
                return StepPlan([], StepLoad())
            self._disturb(random.Random(self.steps))
        plan = super().plan()
        self.steps += bool(plan.rows)
        return plan

    def _disturb(self, source: random.Random) -> None:
        if candidates := self._younger_admitted():
            self.retract(source.choice(candidates))
        lease = self.cache.open("greedy")
        tokens = source.randint(0, self.cache.usage.available_pages()) * self.cache.page_size
        if tokens and self.cache.reserve(lease, tokens):
            self.cache.commit(lease, tokens, 0)
        self.cache.close(lease, array("i"), 0)

    def _younger_admitted(self) -> list[Sequence]:
        return [s for s in list(self.admission.turns)[1:] if s.turn and s.turn.is_admitted]

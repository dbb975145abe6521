"""A scheduler under which nothing stays: turns are retracted, idle sessions evicted."""

import random
from array import array

from engine.schedule import Plan, Scheduler

RETRACT_EVERY = 3


class DisturbedScheduler(Scheduler):
    """Before every third step it retracts a turn, though never the oldest, as the real one never
    would, and takes pages from all that is idle."""

    seed = 0

    def plan(self) -> Plan:
        self._steps = getattr(self, "_steps", self.seed) + 1
        if self._steps % RETRACT_EVERY == 0:
            self._disturb(random.Random(self._steps))
        return super().plan()

    def _disturb(self, source: random.Random) -> None:
        younger = list(self._turns)[1:]
        able = [s for s in younger if s.turn and s.turn.admitted and not s.flying]
        if able:
            self.retract(source.choice(able))
        greedy = self.cache.open("greedy")
        tokens = source.randint(0, self.cache.attainable()) * self.cache.page_size
        if tokens and self.cache.grow(greedy, tokens):
            self.cache.commit(greedy, tokens, 0)
        self.cache.close(greedy, array("i"), 0)

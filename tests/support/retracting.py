"""A scheduler that retracts every decoding turn before each third step, whatever room there is."""

from continuo.engine.core.schedule import Scheduler, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence

RETRACT_EVERY = 3
"""Steps, as the reference's own kit forces it."""


class RetractingScheduler(Scheduler):
    """Where steps run ahead it first lets what is in flight come back: a turn in flight cannot be
    retracted. A turn that still computes its prompt is left alone, or it might never end."""

    steps = 0
    retracted = 0

    def plan(self) -> StepPlan:
        if self.steps % RETRACT_EVERY == RETRACT_EVERY - 1 and (able := self._decoding()):
            if any(s.in_flight for s in self._turns):
                return StepPlan([], StepLoad())
            for sequence in able:
                self.retract(sequence)
            self.retracted += len(able)
        plan = super().plan()
        self.steps += bool(plan.rows)
        return plan

    def _decoding(self) -> list[Sequence]:
        return [s for s in self._turns if s.turn and s.turn.is_admitted and s.turn.output_tokens]

"""A scheduler that retracts every decoding turn before each third step, whatever room there is."""

from continuo.engine.core.schedule import Load, Plan, Scheduler
from continuo.engine.core.sequence import Sequence

RETRACT_EVERY = 3
"""Steps, as the reference's own kit forces it."""


class RetractingScheduler(Scheduler):
    """Where steps run ahead it first lets what is in flight come back: a turn in flight cannot be
    retracted. A turn that still computes its prompt is left alone, or it might never end."""

    steps = 0
    retracted = 0

    def plan(self) -> Plan:
        if self.steps % RETRACT_EVERY == RETRACT_EVERY - 1 and (able := self._decoding()):
            if any(s.flying for s in self._turns):
                return Plan([], Load())
            for sequence in able:
                self.retract(sequence)
            self.retracted += len(able)
        plan = super().plan()
        self.steps += bool(plan.works)
        return plan

    def _decoding(self) -> list[Sequence]:
        return [s for s in self._turns if s.turn and s.turn.admitted and s.turn.outputs]

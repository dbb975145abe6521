"""Scheduler that retracts every decoding turn before each third step, even if pages are free."""

from continuo.engine.core.schedule import Scheduler, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence

RETRACT_EVERY = 3
"""Number of steps from one retraction to the next, as in SGLang's test kit."""


class RetractingScheduler(Scheduler):
    """Scheduler that retracts every decoding turn before each third step.

    If steps run ahead, the scheduler first waits for the steps in flight, because a turn in flight
    cannot be retracted. A turn in prefill is not retracted, because it might then never end.
    """

    steps = 0
    retraction_count = 0

    def plan(self) -> StepPlan:
        if self.steps % RETRACT_EVERY == RETRACT_EVERY - 1 and (turns := self._decoding()):
            if any(s.in_flight for s in self.admission.turns):
                return StepPlan([], StepLoad())
            for sequence in turns:
                self.retract(sequence)
                self.cache.rewind(sequence.lease, 0)
            self.retraction_count += len(turns)
        plan = super().plan()
        self.steps += bool(plan.rows)
        return plan

    def _decoding(self) -> list[Sequence]:
        return [
            s
            for s in self.admission.turns
            if s.turn and s.turn.is_admitted and s.turn.output_tokens
        ]

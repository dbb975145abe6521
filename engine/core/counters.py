"""Counters of one engine since its start."""


class Counters:
    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_drawn = 0
        self.model_s = 0.0
        """Seconds the device has worked, in steps that were collected."""
        self._model_s_before_step = 0.0
        """The same without the last of them, ..."""
        self._step_began_s = 0.0
        """... which began then; or the one in flight."""
        self._is_step_in_flight = False
        self.failed_steps = 0
        self.failed_audits = 0

    def begin_step(self, now: float) -> None:
        """The device is handed a step; the one in flight goes before it."""
        if not self._is_step_in_flight:
            self._is_step_in_flight, self._step_began_s, self._model_s_before_step = (
                True,
                now,
                self.model_s,
            )

    def end_step(self, model_s: float, next_began_s: float | None) -> None:
        """A step is collected; the next one in flight, if any, begins now."""
        self._model_s_before_step = self.model_s
        self.model_s += model_s
        self._is_step_in_flight = next_began_s is not None
        if next_began_s is not None:
            self._step_began_s, self._model_s_before_step = next_began_s, self.model_s

    def discard_steps(self) -> None:
        """What was in flight is lost."""
        self._is_step_in_flight = False

    def step_s(self, now: float) -> float:
        """How long ago the step in flight began; 0 if there is none."""
        return now - self._step_began_s if self._is_step_in_flight else 0.0

    def model_s_at(self, at: float) -> float:
        """Seconds the device had worked at a time since the last step but one."""
        within = self._model_s_before_step + max(at - self._step_began_s, 0.0)
        return within if self._is_step_in_flight else min(within, self.model_s)

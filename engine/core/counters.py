"""Counters of one engine since its start, and the seconds that its device has computed."""


class Counters:
    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_drawn = 0
        self.draft_rows = 0
        """Collected rows with drafts."""
        self.draft_tokens = 0
        self.accepted_tokens = 0
        """Ids drawn by rows with drafts, without one for each row."""
        self.model_s = 0.0
        """Seconds that the device computed in collected steps."""
        self._model_s_before_step = 0.0
        """Value of `model_s` before the step that began at `_step_began_s`."""
        self._step_began_s = 0.0
        """Time at which the step in flight began; if no step is in flight, that of the last
        collected step."""
        self._is_step_in_flight = False
        self.failed_steps = 0
        self.audits = 0
        self.failed_audits = 0

    def record_drafts(self, drafts: int, accepted: int) -> None:
        """Record a collected row with drafts."""
        self.draft_rows += 1
        self.draft_tokens += drafts
        self.accepted_tokens += accepted

    def begin_step(self, now: float) -> None:
        """Record a launch. The step begins now, unless an earlier one is still in flight."""
        if not self._is_step_in_flight:
            self._is_step_in_flight, self._step_began_s, self._model_s_before_step = (
                True,
                now,
                self.model_s,
            )

    def end_step(self, model_s: float, next_began_s: float | None) -> None:
        """Record a collected step; the next one in flight, if any, begins at `next_began_s`."""
        self._model_s_before_step = self.model_s
        self.model_s += model_s
        self._is_step_in_flight = next_began_s is not None
        if next_began_s is not None:
            self._step_began_s, self._model_s_before_step = next_began_s, self.model_s

    def discard_steps(self) -> None:
        """Record that all steps in flight are lost."""
        self._is_step_in_flight = False

    def step_s(self, now: float) -> float:
        """Return the seconds since the step in flight began; 0 if there is none."""
        return now - self._step_began_s if self._is_step_in_flight else 0.0

    def model_s_at(self, at: float) -> float:
        """Return the seconds that the device had computed at time `at`. For a time before the start
        of the last step, returns the value at that start."""
        within = self._model_s_before_step + max(at - self._step_began_s, 0.0)
        return within if self._is_step_in_flight else min(within, self.model_s)

"""Counters of one engine since its start."""


class Counters:
    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_drawn = 0
        self.model_s = 0.0
        """Seconds the device has worked, in steps that were collected."""
        self._before_s = 0.0
        """The same without the last of them, ..."""
        self._began_s = 0.0
        """... which began then; or the one in flight."""
        self._flying = False
        self.failed_steps = 0
        self.failed_audits = 0

    def begin(self, now: float) -> None:
        """The device is handed a step; the one in flight goes before it."""
        if not self._flying:
            self._flying, self._began_s, self._before_s = True, now, self.model_s

    def worked(self, model_s: float, next_began_s: float | None) -> None:
        """A step is collected; the next one in flight, if any, begins now."""
        self._before_s = self.model_s
        self.model_s += model_s
        self._flying = next_began_s is not None
        if next_began_s is not None:
            self._began_s, self._before_s = next_began_s, self.model_s

    def rest(self) -> None:
        """What was in flight is lost."""
        self._flying = False

    def step_s(self, now: float) -> float:
        """How long ago the step in flight began; 0 if there is none."""
        return now - self._began_s if self._flying else 0.0

    def worked_s(self, at: float) -> float:
        """Seconds the device had worked at a time since the last step but one."""
        within = self._before_s + max(at - self._began_s, 0.0)
        return within if self._flying else min(within, self.model_s)

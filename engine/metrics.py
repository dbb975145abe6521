"""Counters of one engine since its start."""


class Counters:
    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_drawn = 0
        self.model_s = 0.0
        """Seconds the device has worked, in steps that were collected."""
        self.working_since_s: float | None = None
        """When the device was handed the step it works on."""
        self.failed_steps = 0
        self.failed_audits = 0

    def worked_s(self, now: float) -> float:
        """Seconds the device has worked until `now`, the step in flight included."""
        flying = 0.0 if self.working_since_s is None else now - self.working_since_s
        return self.model_s + flying

"""Counters of one engine since its start."""


class Counters:
    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_drawn = 0
        self.model_s = 0.0
        self.failed_steps = 0
        self.failed_audits = 0

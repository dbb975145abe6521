"""HangingRunner: a null device that hangs. The engine answers pings, but completes no step."""

import threading

from continuo.engine.batch import Batch, BatchResult, Geometry
from tests.support.digest_runner import DigestRunner


class HangingRunner(DigestRunner):
    def __init__(self, geometry: Geometry, *, step_s: float) -> None:
        super().__init__(geometry, step_s=step_s)
        self.may_compute = threading.Event()
        self.may_compute.set()

    def launch(self, batch: Batch) -> BatchResult:
        self.may_compute.wait()
        return super().launch(batch)

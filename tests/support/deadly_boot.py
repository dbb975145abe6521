"""python -m tests.support.deadly_boot START: an engine process that certain token ids kill.

The null device kills the process as soon as a step reads one of the token ids in the environment
variable DEADLY_IDS (comma-separated). If DEADLY_WAY is `lose`, the device raises instead, in that
step and in all later ones. DEADLY_AHEAD is the number of steps that run ahead. START is explained
in engine/server/process.py.
"""

import os
import secrets
import signal
from collections.abc import Callable

from continuo.engine.batch import Batch, BatchResult, Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady
from tests.support.digest_runner import VOCABULARY, DigestRunner, make_engine_ready

DEADLY_IDS = {int(id) for id in os.environ["DEADLY_IDS"].split(",")}
FAILURE_MODE = os.environ.get("DEADLY_WAY", "kill")
STEPS_AHEAD = int(os.environ.get("DEADLY_AHEAD", "0"))
GEOMETRY = Geometry(2048, 4, 4000, VOCABULARY + 200, 64, STEPS_AHEAD, 0)


class DeadlyRunner(DigestRunner):
    is_lost = False

    def is_usable(self) -> bool:
        return not self.is_lost

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            if DEADLY_IDS.intersection(
                row.ids if row.feed_row < 0 else [self.drawn_ids[row.feed_row]]
            ):
                self.is_lost = True
        if self.is_lost and FAILURE_MODE == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().launch(batch)


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[DeadlyRunner, EngineReady]:
    runner = DeadlyRunner(GEOMETRY, step_s=0.001)
    return runner, make_engine_ready(GEOMETRY, config.model, secrets.token_hex(8))


if __name__ == "__main__":
    process.main(_build)

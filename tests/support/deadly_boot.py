"""python -m tests.support.deadly_boot START: an engine process that some ids kill.

The null device kills the process as soon as a step reads one of the ids in the environment variable
DEADLY_IDS (comma-separated). If DEADLY_WAY is `lose`, the device raises instead, in this and every
later step of the process.
"""

import os
import secrets
import signal
from collections.abc import Callable

from continuo.engine.batch import Batch, BatchResult, Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady
from tests.support.digest_runner import VOCABULARY, DigestRunner, ready

DEADLY = {int(id) for id in os.environ["DEADLY_IDS"].split(",")}
WAY = os.environ.get("DEADLY_WAY", "kill")
AHEAD = int(os.environ.get("DEADLY_AHEAD", "0"))
GEOMETRY = Geometry(2048, 4, 4000, VOCABULARY + 200, 64, AHEAD, 0)


class Deadly(DigestRunner):
    lost = False

    def is_usable(self) -> bool:
        return not self.lost

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            if DEADLY.intersection(row.ids if row.feed_row < 0 else [self.drawn[row.feed_row]]):
                self.lost = True
        if self.lost and WAY == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().launch(batch)


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[Deadly, EngineReady]:
    runner = Deadly(GEOMETRY, step_s=0.001)
    return runner, ready(GEOMETRY, config.model, secrets.token_hex(8))


if __name__ == "__main__":
    process.main(_build)

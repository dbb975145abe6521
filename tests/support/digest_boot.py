"""python -m tests.support.digest_boot START: an engine process on the null device.

The model folder needs only a tokenizer. Everything but the device is real: the process can be
restarted, stopped and killed like one that computes a model, and is ready within a second. START
is explained in engine/server/process.py.
"""

import os
import secrets
from collections.abc import Callable

from continuo.engine.batch import Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady
from tests.support.digest_runner import VOCABULARY, DigestRunner, make_engine_ready

STEP_S = float(os.environ.get("DIGEST_STEP_S", "0.002"))
"""Duration of each step in seconds: long enough for a fault to occur during a response."""
GEOMETRY = Geometry(2048, 4, 4000, VOCABULARY, 64, 0, 0)


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[DigestRunner, EngineReady]:
    runner = DigestRunner(GEOMETRY, step_s=STEP_S)
    return runner, make_engine_ready(GEOMETRY, config.model, secrets.token_hex(8))


if __name__ == "__main__":
    process.main(_build)

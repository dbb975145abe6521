"""python -m tests.support.digest_boot START: the engine process on the null device.

The model is a folder with a tokenizer. Everything but the device is real: the process can be
restarted, awaited, stopped and killed like one with a model, and is ready within a second.
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
"""Duration of a step, so that a fault can occur during a response."""
GEOMETRY = Geometry(2048, 4, 4000, VOCABULARY, 64, 0, 0)


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[DigestRunner, EngineReady]:
    runner = DigestRunner(GEOMETRY, step_s=STEP_S)
    return runner, make_engine_ready(GEOMETRY, config.model, secrets.token_hex(8))


if __name__ == "__main__":
    process.main(_build)

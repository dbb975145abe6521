"""python -m tests.support.digest_boot START: the engine's process, on the device of digests.

A model is a folder with a tokenizer.

All of it is real but the device: it is started again, waited for, stopped and killed like one with
a model, and is there within a second.
"""

import os
import secrets
from collections.abc import Callable

from continuo.engine.batch import Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady
from tests.support.digest_runner import VOCABULARY, DigestRunner, ready

STEP_S = float(os.environ.get("DIGEST_STEP_S", "0.002"))
"""An answer gives a fault time to happen."""
GEOMETRY = Geometry(2048, 4, 4000, VOCABULARY, 64, 0, 0)


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[DigestRunner, EngineReady]:
    runner = DigestRunner(GEOMETRY, step_s=STEP_S)
    return runner, ready(GEOMETRY, config.model, secrets.token_hex(8))


if __name__ == "__main__":
    process.main(_build)

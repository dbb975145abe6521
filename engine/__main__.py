"""Main program of the engine process on a torch device: `python -m continuo.engine START`, where
START is a StartOptions as JSON."""

import secrets
from collections.abc import Callable

from continuo.engine.config import EngineConfig
from continuo.engine.device.build import build_runner
from continuo.engine.device.runner import TorchRunner
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady


def _build_runner(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[TorchRunner, EngineReady]:
    runner, loaded = build_runner(config, progress)
    geometry = runner.geometry
    return runner, EngineReady(
        folder=loaded.folder,
        model=loaded.model,
        architecture=loaded.architecture,
        max_model_len=geometry.max_model_len,
        vocab_size=geometry.vocab_size,
        pages=geometry.pages,
        page_size=geometry.page_size,
        device=loaded.device,
        dtype=loaded.dtype,
        load_s=loaded.load_s,
        incarnation=secrets.token_hex(8),
        digest=compute_fingerprint(loaded.folder),
    )


if __name__ == "__main__":
    process.main(_build_runner)

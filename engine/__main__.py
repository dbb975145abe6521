"""Run the engine process on a torch device: `python -m continuo.engine START`."""

import secrets
from collections.abc import Callable

from continuo.engine.config import EngineConfig
from continuo.engine.device.build import build
from continuo.engine.device.runner import TorchRunner
from continuo.engine.fingerprint import fingerprint
from continuo.engine.server import process
from continuo.engine.wire.messages import Ready


def _build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[TorchRunner, Ready]:
    runner, loaded = build(config, progress)
    geometry = runner.geometry
    return runner, Ready(
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
        digest=fingerprint(loaded.folder),
    )


if __name__ == "__main__":
    process.main(_build)

"""Main program of the engine process, on a torch device or on another server: `python -m
continuo.engine START`, where START is a StartOptions as JSON."""

import gc
import secrets
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from continuo.engine.config import EngineConfig
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady

if TYPE_CHECKING:
    from continuo.engine.device.runner import TorchRunner


def _build_runner(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> "tuple[TorchRunner, EngineReady]":
    from continuo.engine.device.build import build_runner  # noqa: PLC0415 - imported below

    runner, loaded = build_runner(config, progress)
    geometry = runner.geometry
    return runner, EngineReady(
        folder=loaded.folder,
        model=loaded.model,
        architecture=loaded.architecture,
        max_model_len=geometry.max_model_len,
        vocab_size=geometry.vocab_size,
        pages=geometry.memory_pages,
        page_size=geometry.page_size,
        device=loaded.device,
        dtype=loaded.dtype,
        load_s=loaded.load_s,
        incarnation=secrets.token_hex(8),
        digest=compute_fingerprint(loaded.folder),
    )


if __name__ == "__main__":
    if process.read_start_options().engine.engine_url is None:
        # Importing torch takes most of the start, a seventh of it in collections that find no
        # garbage. `process` enables them when the model is loaded.
        gc.disable()
        import_module("continuo.engine.device.build")
    process.main(_build_runner)

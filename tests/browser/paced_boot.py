"""python -m tests.browser.paced_boot START: the engine process, with a delay in every step."""

import time
from collections.abc import Callable

from continuo.engine import __main__
from continuo.engine.batch import Batch, BatchResult
from continuo.engine.config import EngineConfig
from continuo.engine.device.runner import PendingStep, TorchRunner
from continuo.engine.server import process
from continuo.engine.wire.messages import EngineReady

STEP_S = 0.003


def build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[TorchRunner, EngineReady]:
    runner, ready = __main__._build_runner(config, progress)  # pyright: ignore[reportPrivateUsage]
    collect = runner.collect

    def collect_later(ticket: PendingStep | Batch) -> BatchResult:
        time.sleep(STEP_S)
        return collect(ticket)

    runner.collect = collect_later
    return runner, ready


if __name__ == "__main__":
    process.main(build)

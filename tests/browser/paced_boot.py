"""python -m tests.browser.paced_boot START: the engine's process, whose steps wait a little."""

import time
from collections.abc import Callable

from engine import boot, child
from engine.batch import Batch, Sampled
from engine.config import EngineConfig
from engine.device.runner import Ticket, TorchRunner
from engine.messages import Ready

STEP_S = 0.001


class Paced(TorchRunner):
    def collect(self, ticket: Ticket | Batch) -> Sampled:
        time.sleep(STEP_S)
        return super().collect(ticket)


def build(
    config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[TorchRunner, Ready]:
    runner, ready = boot._build(config, progress)  # pyright: ignore[reportPrivateUsage]
    runner.__class__ = Paced
    return runner, ready


if __name__ == "__main__":
    child.main(build)

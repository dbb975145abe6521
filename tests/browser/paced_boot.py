"""python -m tests.browser.paced_boot START: the engine process, with a delay in every step. Where
another server computes, each of its chunks is delayed."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from continuo.engine import __main__
from continuo.engine.batch import Batch, BatchResult
from continuo.engine.config import EngineConfig
from continuo.engine.device.runner import PendingStep, TorchRunner
from continuo.engine.server import process
from continuo.engine.upstream import detection
from continuo.engine.upstream.llama_server import LlamaServer
from continuo.engine.upstream.server import Chunk, Completion
from continuo.engine.upstream.vllm import VllmServer
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


async def delay(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    async with aclosing(chunks):
        async for chunk in chunks:
            await asyncio.sleep(STEP_S)
            yield chunk


class PacedLlamaServer(LlamaServer):
    def generate(self, request: Completion) -> AsyncGenerator[Chunk]:
        return delay(super().generate(request))


class PacedVllmServer(VllmServer):
    def generate(self, request: Completion) -> AsyncGenerator[Chunk]:
        return delay(super().generate(request))


if __name__ == "__main__":
    detection.LlamaServer = PacedLlamaServer
    detection.VllmServer = PacedVllmServer
    process.main(build)

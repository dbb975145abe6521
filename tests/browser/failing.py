"""The real web server with a model that fails on request: `python -m tests.browser.failing`.

The engine runs a null device, slowed so that a response can be watched; responses end only at the
largest allowed length. SIGUSR1 makes its logits non-finite, SIGHUP kills the engine and prevents a
restart, and SIGUSR2 undoes both.
"""

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.realtime.conftest import chat_folder
from tests.support.engines import digest_engine
from tests.support.web_servers import serve_engine

STEP_S = 0.02
VOCABULARY_SIZE = 400


async def main(port: int, limits: Limits, folder: Path) -> None:
    device = digest_engine(
        chat_folder(folder, bytes=True, endless=True),
        pages=1024,
        max_model_len=2000,
        batched_tokens=64,
        step_s=STEP_S,
        vocabulary=VOCABULARY_SIZE,
    )
    settings = GatewaySettings(limits=limits)
    store = await open_store("sqlite://:memory:", "normal")
    async with device as bench, serve_engine(bench.engine, settings, store, port):
        loop, terminated = asyncio.get_running_loop(), asyncio.Event()

        def make_logits_non_finite() -> None:
            bench.runner.nan_ids.update(range(VOCABULARY_SIZE))

        def kill() -> None:
            bench.launch_allowed.clear()
            bench.kill()

        def recover() -> None:
            bench.runner.nan_ids.clear()
            bench.launch_allowed.set()

        loop.add_signal_handler(signal.SIGUSR1, make_logits_non_finite)
        loop.add_signal_handler(signal.SIGHUP, kill)
        loop.add_signal_handler(signal.SIGUSR2, recover)
        loop.add_signal_handler(signal.SIGTERM, terminated.set)
        print("Listening on", port, flush=True)
        await terminated.wait()
    await store.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--requests-per-minute", type=int, default=0)
    arguments = parser.parse_args()
    limits = Limits(requests_per_minute=arguments.requests_per_minute)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(arguments.port, limits, Path(folder)))

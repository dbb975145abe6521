"""The real web server before a model that can be broken: `python -m tests.browser.failing`.

The device is that of digests, slow enough to be watched; its answers have no end but the longest
that is allowed. At SIGUSR1 its logits stop being finite, at SIGHUP the engine dies and none comes
back; at SIGUSR2 all is well again.
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
from tests.support.web_servers import serving

STEP_S = 0.02
IDS = 400


async def main(port: int, limits: Limits, folder: Path) -> None:
    device = digest_engine(
        chat_folder(folder, bytes=True, endless=True),
        pages=1024,
        max_model_len=2000,
        batched_tokens=64,
        step_s=STEP_S,
        vocabulary=IDS,
    )
    settings = GatewaySettings(limits=limits)
    store = await open_store("sqlite://:memory:", "normal")
    async with device as bench, serving(bench.engine, settings, store, port):
        here, stopped = asyncio.get_running_loop(), asyncio.Event()

        def spoil() -> None:
            bench.runner.poison.update(range(IDS))

        def kill() -> None:
            bench.may_launch.clear()
            bench.kill()

        def heal() -> None:
            bench.runner.poison.clear()
            bench.may_launch.set()

        here.add_signal_handler(signal.SIGUSR1, spoil)
        here.add_signal_handler(signal.SIGHUP, kill)
        here.add_signal_handler(signal.SIGUSR2, heal)
        here.add_signal_handler(signal.SIGTERM, stopped.set)
        print("Listening on", port, flush=True)
        await stopped.wait()
    await store.aclose()


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    given.add_argument("--port", type=int, required=True)
    given.add_argument("--requests-per-minute", type=int, default=0)
    asked = given.parse_args()
    limits = Limits(requests_per_minute=asked.requests_per_minute)
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(asked.port, limits, Path(made)))

"""The real web server with a model that thinks first: `python -m tests.browser.thinking --port N`.

Each turn outputs the same thought and answer, slowed so that both can be watched.
"""

import argparse
import asyncio
import signal

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.support.checkpoints import family_folder, family_text
from tests.support.engines import running_engine
from tests.support.reasoning_outputs import reasoning_output
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import serve_engine

FAMILY = "qwen3_0_6b"
STEP_S = 0.02


async def main(port: int) -> None:
    text = family_text(FAMILY)
    device = ScriptedRunner(
        Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, [reasoning_output(FAMILY)]
    )
    device.step_s = STEP_S
    store = await open_store("sqlite://:memory:", "normal")
    async with (
        running_engine(family_folder(FAMILY), lambda: device) as harness,
        serve_engine(harness.engine, GatewaySettings(), store, port),
    ):
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        print("Listening on", port, flush=True)
        await terminated.wait()
    await store.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(main(parser.parse_args().port))

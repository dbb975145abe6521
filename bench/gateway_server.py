"""Run a gateway with a scripted engine, like `continuo serve`, in a process of its own.

Usage: python -m continuo.bench.gateway_server FOLDER RATE TRACE STORE DURABILITY CORE

The gateway's event loop runs on CPU core CORE; the store's thread and the engine may use the cores
that this process had at its start. Prints the port and the process id once the gateway listens. For
FOLDER, RATE and TRACE see `scripted_engine`; STORE is a URL.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator

import msgspec
import uvloop

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.event_loop import run_in_thread
from continuo.realtime.limits import Limits
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.process.web_server import WebServer, bind
from continuo.realtime.store import Durability, Store, open_store

API_KEY = "bench"
SETTINGS = GatewaySettings(
    tenants={API_KEY: "default"},
    served_model_name=("bench",),
    limits=Limits(connected_sessions_max=20_000),
)


async def main(
    folder: str, rate: str, trace_file: str, store: str, durability: Durability, core: int
) -> None:
    logging_setup.configure("warning", (API_KEY,))

    async def launch() -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "continuo.bench.scripted_engine"),
                *("ticks", str(theirs.fileno()), folder, rate, trace_file),
                pass_fds=(theirs.fileno(),),
            )
        return ours

    engine = EngineClient(launch)
    await engine.connect()
    if engine.text.template is not None:
        await run_in_thread(
            "chat template", engine.text.template.prepare
        )  # as `continuo serve` does
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    opened = await open_store(store, durability)
    os.sched_setaffinity(0, {core})
    async with serving(engine, opened) as port:
        print(port, os.getpid(), flush=True)
        await stop.wait()
    await engine.stop()


@contextlib.asynccontextmanager
async def serving(
    engine: EngineClient, store: Store, settings: GatewaySettings = SETTINGS
) -> AsyncIterator[int]:
    """Serve the API on a port of the loopback interface, which is yielded."""
    with bind("127.0.0.1", 0) as sock:
        app, listening = build_app(engine, settings, store), asyncio.Event()
        server = WebServer(app, settings, listening.set)
        async with app.state.registry.running():
            running = asyncio.create_task(server.serve([sock]))
            await listening.wait()
            yield sock.getsockname()[1]
            server.should_exit = True
            await running


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder, rate, trace_file, store, durability_name, core = sys.argv[1:]
    durability = msgspec.convert(durability_name, Durability)
    uvloop.run(main(folder, rate, trace_file, store, durability, int(core)))

"""Child: the engine's process but for its device. Knows no torch.

Its one argument, START (JSON), names the descriptors the process was given: a connected socket to
its parent, who is a front too, the memory of the flight recorder, and perhaps a listening socket
for fronts elsewhere. When the parent
hangs up, or dies, this process ends; other fronts come and go.
"""

import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import uvloop

from continuo.engine.batch import DeviceLost, Runner
from continuo.engine.config import EngineConfig, StartOptions
from continuo.engine.errors import EngineError
from continuo.engine.server.assembly import assemble
from continuo.engine.server.listener import listen
from continuo.engine.text import ModelText
from continuo.engine.wire.flight_recorder import FlightRecorder
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    EngineCommand,
    EngineEvent,
    EngineReady,
    ModelLoadFailed,
    ModelLoading,
    refuse_malformed,
)

log = logging.getLogger(__name__)

ParentLink = Link[EngineEvent, EngineCommand]
RunnerFactory = Callable[
    [EngineConfig, Callable[[str, float], None]], tuple[Runner[Any], EngineReady]
]
"""Makes the device, on a thread, and says how far it is. Raises EngineError."""


def main(build_runner: RunnerFactory) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever tells us all means our parent
        signal.signal(number, signal.SIG_IGN)
    start = msgspec.json.decode(sys.argv[1], type=StartOptions)
    status = 0
    try:
        uvloop.run(_serve(start, build_runner))
    except DeviceLost as error:
        log.critical("%s; this engine process ends, to be started again", error)
        status = 1
    logging.shutdown()
    os._exit(status)  # nothing here outlives the process: device libraries need not be torn down


async def _serve(start: StartOptions, build_runner: RunnerFactory) -> None:
    config = start.engine
    recorder = FlightRecorder.from_fd(start.recorder)
    early: list[EngineCommand] = []
    lost = asyncio.Event()
    decoder = msgspec.msgpack.Decoder(list[EngineCommand])
    link: ParentLink = Link(decoder, early.extend, lost.set, make_refusal=refuse_malformed)
    here = asyncio.get_running_loop()
    await here.create_connection(lambda: link, sock=socket.socket(fileno=start.parent))

    def progress(what: str, fraction: float) -> None:
        here.call_soon_threadsafe(link.send, ModelLoading(what, fraction))

    try:
        # The thread ends, and with it the threads that torch had for it: libgomp lets those of a
        # step spin while they wait for one another only where no more of them exist than cores.
        with ThreadPoolExecutor(1, "loading") as loading:
            runner, ready = await here.run_in_executor(loading, build_runner, config, progress)
        text = ModelText(ready.folder)
    except EngineError as error:
        link.send(ModelLoadFailed(error.message))
        link.close()
        return
    ready = msgspec.structs.replace(ready, predecessor=recorder.read_predecessor())
    parts = assemble(runner, text, config, digest=ready.digest, recorder=recorder)
    fronts = parts.clients
    gc.collect()
    gc.freeze()  # what was loaded stays: the collector need not walk it again and again
    parent = fronts.add(link.send_now)
    link.on_messages = functools.partial(fronts.receive, parent)
    link.send(ready)
    recorder.begin_incarnation(ready.incarnation)
    fronts.receive(parent, early)
    if start.listening is not None:
        await listen(start.listening, fronts, ready)
    running = asyncio.create_task(parts.run())
    gone = asyncio.create_task(lost.wait())
    await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
    parts.loop.stop()
    await running

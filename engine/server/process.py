"""Main program of an engine process, for any device: the caller passes a factory that builds it.
With `engine_url`, another server computes instead.

The single argument, START (JSON of StartOptions), names the inherited descriptors: a socket to the
parent process, which is a client too, the memory of the flight recorder, and optionally a listening
socket for remote clients. The process exits when the parent closes its link or dies; other clients
may connect and disconnect. A standby process has imported all modules and waits to be promoted.
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
from typing import TYPE_CHECKING, Any

import msgspec

from continuo.engine.batch import DeviceLost, Runner
from continuo.engine.config import EngineConfig, StartOptions
from continuo.engine.core.transitions import RecordTurn
from continuo.engine.errors import EngineError
from continuo.engine.event_loop import run_event_loop
from continuo.engine.garbage_collection import collect_garbage
from continuo.engine.log_format import ConsoleFormatter, JsonFormatter
from continuo.engine.server.assembly import EngineCore, assemble
from continuo.engine.server.listener import Listener
from continuo.engine.server.turn_spans import TurnSpans
from continuo.engine.server.upstream_assembly import assemble_upstream
from continuo.engine.text import ModelText
from continuo.engine.trace_export import create_trace_provider, flush_traces
from continuo.engine.upstream.startup import start_server
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

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

ParentLink = Link[EngineEvent, EngineCommand]
RunnerFactory = Callable[
    [EngineConfig, Callable[[str, float], None]], tuple[Runner[Any], EngineReady]
]
"""Function that loads the model and builds the device. Called on a thread of its own; reports
progress to its second argument, as loading stage and fraction done. Raises EngineError."""


def main(build_runner: RunnerFactory) -> None:
    # The parent handles signals to the group.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    start = read_start_options()
    _configure_logging(start.engine)
    if start.is_standby and not _wait_for_promotion(start.parent):
        return
    status, traces = 0, _create_trace_provider(start.engine)
    record_turn = None if traces is None else TurnSpans(traces)
    try:
        run_event_loop(_serve(start, build_runner, record_turn))
    except DeviceLost as error:
        log.critical("%s; this engine process exits and must be restarted", error)
        status = 1
    if traces is not None:
        flush_traces(traces)
    logging.shutdown()
    os._exit(status)  # skip the teardown of device libraries: nothing outlives the process


def read_start_options() -> StartOptions:
    return msgspec.json.decode(sys.argv[1], type=StartOptions)


def _configure_logging(config: EngineConfig) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter()
        if config.log_format == "json"
        else ConsoleFormatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _create_trace_provider(config: EngineConfig) -> "TracerProvider | None":
    if config.otlp_traces_endpoint is None:
        return None
    try:
        return create_trace_provider(config.otlp_traces_endpoint, "continuo-engine")
    except ImportError:
        log.warning("OpenTelemetry is not installed here: this engine exports no traces")
        return None


def _wait_for_promotion(parent: int) -> bool:
    """Wait until the parent process sends a byte, and return True. Returns False if it closes the
    socket instead, or dies."""
    with socket.socket(fileno=os.dup(parent)) as sock:
        sock.setblocking(True)
        return bool(sock.recv(1))


async def _load_model(
    build_runner: RunnerFactory,
    config: EngineConfig,
    progress: Callable[[str, float], None],
    recorder: FlightRecorder,
    record_turn: RecordTurn | None,
) -> tuple[EngineCore[Any], EngineReady]:
    """Load the model and assemble a core around its device. Raises EngineError."""
    # Load on a separate thread. The threads that torch creates for it end when it ends. They must
    # not remain: libgomp's threads spin only if there are no more of them than cores.
    with ThreadPoolExecutor(1, "loading") as loading:
        event_loop = asyncio.get_running_loop()
        runner, ready = await event_loop.run_in_executor(loading, build_runner, config, progress)
    text = ModelText(ready.folder)
    core = assemble(
        runner, text, config, digest=ready.digest, recorder=recorder, record_turn=record_turn
    )
    return core, ready


async def _serve(
    start: StartOptions, build_runner: RunnerFactory, record_turn: RecordTurn | None
) -> None:
    config = start.engine
    recorder = FlightRecorder.from_fd(start.recorder)
    early_commands: list[EngineCommand] = []
    lost = asyncio.Event()
    decoder = msgspec.msgpack.Decoder(list[EngineCommand])
    receive: Callable[[list[EngineCommand]], None] = early_commands.extend
    link: ParentLink = Link(
        decoder, lambda commands: receive(commands), lost.set, make_refusal=refuse_malformed
    )
    event_loop = asyncio.get_running_loop()
    await event_loop.create_connection(lambda: link, sock=socket.socket(fileno=start.parent))

    def progress(what: str, fraction: float) -> None:
        event_loop.call_soon_threadsafe(link.send, ModelLoading(what, fraction))

    try:
        if config.engine_url is None:
            core, ready = await _load_model(build_runner, config, progress, recorder, record_turn)
        else:
            started = await start_server(config, progress)
            core, ready = assemble_upstream(*started, config, record_turn), started.ready
    except EngineError as error:
        link.send(ModelLoadFailed(error.message))
        link.close()
        return
    ready = msgspec.structs.replace(ready, predecessor=recorder.read_predecessor())
    clients = core.clients
    gc.freeze()  # loaded objects stay: exclude them from every collection
    gc.enable()
    collecting = asyncio.create_task(collect_garbage())
    parent = clients.add(link.send_now)
    receive = functools.partial(clients.receive, parent)
    link.send(ready)
    recorder.begin_incarnation(ready.incarnation)
    clients.receive(parent, early_commands)
    if start.listening is not None:
        Listener(start.listening, clients, ready)
    running = asyncio.create_task(core.run())
    parent_lost = asyncio.create_task(lost.wait())
    await asyncio.wait((running, parent_lost), return_when=asyncio.FIRST_COMPLETED)
    core.loop.stop()
    await running
    collecting.cancel()

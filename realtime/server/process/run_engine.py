"""`continuo engine`: an engine alone, for gateways in other processes.

The engine process is a child of this process and is restarted when it dies. The socket on which it
accepts gateways belongs to this process and stays open meanwhile. SIGTERM drains: new work is
refused, running turns may finish within `--drain-grace-s`, and the gateways attach their sessions
to other engines.
"""

import asyncio

from continuo.engine import EngineClient, EngineError, ListenerConfig, print_line
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup, tracing_setup
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.settings import EngineSettings
from continuo.realtime.server.process.console import LoadProgress
from continuo.realtime.server.process.engine_discovery import announce
from continuo.realtime.server.process.engine_metrics import serve_engine_metrics
from continuo.realtime.server.process.file_descriptors import raise_limit
from continuo.realtime.server.process.shutdown import ShutdownSignals, wait_until_idle
from continuo.realtime.server.process.web_server import bind


async def run_engine(settings: EngineSettings) -> int:
    """Run an engine until it is stopped. Returns the exit status. Raises SetupError."""
    tracing_setup.check_installed(settings.engine.otlp_traces_endpoint)
    logging_setup.configure(settings.log_level, (), settings.log_format)
    raise_limit()
    signals = ShutdownSignals()
    with bind(*settings.listen, option="--listen", send_buffer_bytes=None) as sock:
        sock.set_inheritable(True)
        listening = ListenerConfig(
            fd=sock.fileno(),
            secret_file=settings.secret_file,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        print_line(f"Loading {settings.engine.model} ...")
        try:
            engine = await signals.run_unless_stopped(
                EngineClient.start(settings.engine, LoadProgress(), listening)
            )
        except EngineError as error:
            raise SetupError(error.message) from None
        if engine is None:
            return 0
        address = Address(settings.listen.host, sock.getsockname()[1])
        try:
            async with (
                announce(engine, settings.advertise or address, settings.store),
                serve_engine_metrics(engine, settings.metrics_listen) as metrics_address,
            ):
                ready = engine.ready
                scrape = f"  Metrics        http://{metrics_address}/metrics\n"
                print_line(
                    f"Ready after {ready.load_s:.2f} s: {ready.model} on {ready.device}, "
                    f"{ready.dtype}.\n\n  Gateways       {address}\n"
                    + (scrape if metrics_address else "")
                )
                return await _wait_until_stopped(engine, signals, settings)
        finally:
            await engine.stop()


async def _wait_until_stopped(
    engine: EngineClient, signals: ShutdownSignals, settings: EngineSettings
) -> int:
    stopped, lost = (
        asyncio.create_task(signals.wait()),
        asyncio.create_task(engine.fleet.wait_until_lost()),
    )
    await asyncio.wait((stopped, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        print_line("continuo: the engine process was lost; stopping.")
        return 1
    if signals.is_graceful:
        print_line("Stopping. Running turns finish first; signal again to stop at once.")
        await engine.fleet.drain()
        await wait_until_idle(lambda: _running_turns(engine), settings.drain_grace_s)
    else:
        print_line("Stopping.")
    return 0


def _running_turns(engine: EngineClient) -> int:
    return sum(load.turns for load in engine.fleet.loads().values())

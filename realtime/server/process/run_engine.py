"""`continuo engine`: an engine by itself, for gateways elsewhere.

The engine process is a child of this one, takes gateways on a socket that outlives it, and is
started again when it dies. SIGTERM drains: it takes nothing new, its turns are finished within a
grace; gateways take their sessions elsewhere.
"""

import asyncio

from continuo.engine import EngineClient, EngineError, ListenerConfig
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.settings import EngineSettings
from continuo.realtime.server.process.console import LoadProgress, print_line
from continuo.realtime.server.process.engine_discovery import announce
from continuo.realtime.server.process.shutdown import ShutdownSignals, wait_until_idle
from continuo.realtime.server.process.web_server import bind


async def run_engine(settings: EngineSettings) -> int:
    """Returns the exit status. Raises SetupError."""
    logging_setup.configure(settings.log_level, ())
    stopping = ShutdownSignals()
    with bind(*settings.listen, option="--listen") as sock:
        sock.set_inheritable(True)
        listening = ListenerConfig(
            fd=sock.fileno(),
            secret_file=settings.secret_file,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        print_line(f"Loading {settings.engine.model} ...")
        try:
            engine = await stopping.run_unless_stopped(
                EngineClient.start(settings.engine, LoadProgress(), listening)
            )
        except EngineError as error:
            raise SetupError(error.message) from None
        if engine is None:
            return 0
        address = Address(settings.listen.host, sock.getsockname()[1])
        try:
            async with announce(engine, settings.advertise or address, settings.store):
                ready = engine.ready
                print_line(
                    f"Ready after {ready.load_s:.1f} s: {ready.model} on {ready.device}, "
                    f"{ready.dtype}.\n\n  Gateways       {address}\n"
                )
                return await _wait_until_stopped(engine, stopping, settings)
        finally:
            await engine.stop()


async def _wait_until_stopped(
    engine: EngineClient, stopping: ShutdownSignals, settings: EngineSettings
) -> int:
    asked, lost = (
        asyncio.create_task(stopping.wait()),
        asyncio.create_task(engine.wait_until_lost()),
    )
    await asyncio.wait((asked, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        print_line("continuo: the engine process is gone; stopping.")
        return 1
    if stopping.is_graceful:
        print_line("Stopping. Turns that run are finished; again to stop at once.")
        await engine.drain()
        await wait_until_idle(lambda: _running_turns(engine), settings.drain_grace_s)
    else:
        print_line("Stopping.")
    return 0


def _running_turns(engine: EngineClient) -> int:
    return sum(load.turns for load in engine.loads().values())

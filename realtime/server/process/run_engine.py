"""`continuo engine`: an engine by itself, for gateways elsewhere.

The engine process is a child of this one, takes gateways on a socket that outlives it, and is
started again when it dies. SIGTERM drains: it takes nothing new, its turns are finished within a
grace; gateways take their sessions elsewhere.
"""

import asyncio

from continuo.engine import Engine, EngineError, Listening
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.settings import EngineSettings
from continuo.realtime.server.process.console import Progress, say
from continuo.realtime.server.process.engine_discovery import announced
from continuo.realtime.server.process.shutdown import Stopping, until_quiet
from continuo.realtime.server.process.web_server import bind


async def host(settings: EngineSettings) -> int:
    """Returns the exit status. Raises SetupError."""
    logging_setup.configure(settings.log_level, ())
    stopping = Stopping()
    with bind(*settings.listen, option="--listen") as sock:
        sock.set_inheritable(True)
        listening = Listening(
            fd=sock.fileno(),
            secret_file=settings.secret_file,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        say(f"Loading {settings.engine.model} ...")
        try:
            engine = await stopping.unless(Engine.start(settings.engine, Progress(), listening))
        except EngineError as error:
            raise SetupError(error.message) from None
        if engine is None:
            return 0
        address = Address(settings.listen.host, sock.getsockname()[1])
        try:
            async with announced(engine, settings.advertise or address, settings.store):
                ready = engine.ready
                say(
                    f"Ready after {ready.load_s:.1f} s: {ready.model} on {ready.device}, "
                    f"{ready.dtype}.\n\n  Gateways       {address}\n"
                )
                return await _until_stopped(engine, stopping, settings)
        finally:
            await engine.stop()


async def _until_stopped(engine: Engine, stopping: Stopping, settings: EngineSettings) -> int:
    asked, lost = asyncio.create_task(stopping.asked()), asyncio.create_task(engine.lost())
    await asyncio.wait((asked, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        say("continuo: the engine process is gone; stopping.")
        return 1
    if stopping.gently:
        say("Stopping. Turns that run are finished; again to stop at once.")
        await engine.drain()
        await until_quiet(lambda: _turns(engine), settings.drain_grace_s)
    else:
        say("Stopping.")
    return 0


def _turns(engine: Engine) -> int:
    return sum(load.turns for load in engine.loads().values())

"""`continuo serve` and `continuo gateway`, from the port to the farewell.

SIGTERM drains: nobody new comes in, answers in flight are finished within a grace; a conversation
is closed with 1012 when no answer is made for it. SIGINT does not wait for answers. A second signal
leaves at once; one that comes together with the first is the same word: `make` passes on to us what
its whole process group was told.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from continuo.engine import Engine, EngineError, Security
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.settings import Settings
from continuo.realtime.server.http.app import build
from continuo.realtime.server.http.readiness import Entrance
from continuo.realtime.server.process.console import Progress, print_welcome, say
from continuo.realtime.server.process.engine_discovery import elsewhere
from continuo.realtime.server.process.shutdown import Stopping, until_quiet
from continuo.realtime.server.process.web_server import Server, bind, not_free
from continuo.realtime.store import Store, StoreError, open_store

TOGETHER_S = 0.1
"""Signals that come within it are one."""

Source = Callable[[Settings], AbstractAsyncContextManager[Engine]]
Value = TypeVar("Value")


async def serve(settings: Settings) -> int:
    """With an engine of its own. Returns the exit status. Raises SetupError."""
    return await _run(settings, _own)


async def gateway(settings: Settings) -> int:
    """With engines that run apart. Returns the exit status. Raises SetupError."""
    return await _run(settings, _apart)


@asynccontextmanager
async def _own(settings: Settings) -> AsyncGenerator[Engine]:
    say(f"Loading {settings.engine.model} ...")
    try:
        engine = await Engine.start(settings.engine, Progress())
    except EngineError as error:
        raise SetupError(error.message) from None
    try:
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def _apart(settings: Settings) -> AsyncGenerator[Engine]:
    where = [str(address) for address in settings.engines]
    if settings.store.startswith("redis"):
        where.append("those announced in Redis")
    say(f"Waiting for an engine: {', '.join(where)} ...")
    security = Security(settings.secret, _trust(settings))
    store = settings.store if settings.store.startswith("redis") else None
    async with elsewhere(settings.engines, security, store) as engine:
        await engine.when_ready()
        yield engine


async def _run(settings: Settings, source: Source) -> int:
    recent = logging_setup.configure(settings.log_level, settings.tenants)
    tls = _tls(settings)
    stopping = Stopping()
    with bind(settings.host, settings.port) as sock:
        entrance = Entrance()
        server = Server(entrance, settings, lambda: None, tls)
        serving = asyncio.create_task(server.serve([sock]), name="http")
        async with AsyncExitStack() as stack:
            try:
                store = await stack.enter_async_context(_store(settings))
                engine = await stopping.unless(stack.enter_async_context(source(settings)))
                if engine is None:
                    return 0
                settings = _named(settings, engine)
                if engine.text.template is not None:
                    await asyncio.to_thread(engine.text.template.probe)
                app = build(engine, settings, store, recent)
                await stack.enter_async_context(app.state.registry.running())
                entrance.open(app, engine, store)
                print_welcome(engine, settings, sock)
                return await _until_stopped(entrance, engine, serving, stopping, settings)
            finally:
                server.should_exit = True
                try:
                    await serving
                except OSError as error:
                    raise not_free(settings.host, settings.port, error) from None


@asynccontextmanager
async def _store(settings: Settings) -> AsyncGenerator[Store]:
    """Raises SetupError."""
    url = "sqlite://:memory:" if settings.store == "memory" else settings.store
    try:
        store = await open_store(url, settings.durability)
    except StoreError as error:
        raise SetupError(f"--store: {error}") from None
    try:
        yield store
    finally:
        await store.aclose()


def _named(settings: Settings, engine: Engine) -> Settings:
    """A gateway serves what its engines serve."""
    if settings.served_model_name:
        return settings
    return msgspec.structs.replace(settings, served_model_name=(engine.ready.model,))


async def _until_stopped(
    entrance: Entrance,
    engine: Engine,
    serving: "asyncio.Task[None]",
    stopping: Stopping,
    settings: Settings,
) -> int:
    asked, lost = asyncio.create_task(stopping.asked()), asyncio.create_task(engine.lost())
    await asyncio.wait((serving, asked, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        say("continuo: the engine process is gone; stopping.")
        return 1
    lost.cancel()
    asked.cancel()
    entrance.draining = True
    if stopping.gently:
        say("Stopping. Answers in flight are finished; again to stop at once.")
        entrance.state.registry.send_away()
        await until_quiet(lambda: engine.turns, settings.drain_grace_s)
    else:
        say("Stopping.")
    return 0


def _trust(settings: Settings) -> ssl.SSLContext | None:
    """Of engines that speak TLS. Raises SetupError."""
    if settings.engine_cafile is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.engine_cafile)
    except OSError as error:
        why = error.strerror or str(error)
        raise SetupError(f"--engine-cafile {settings.engine_cafile}: {why}") from None
    context.check_hostname = False  # it is signed by who we trust; it may have many addresses
    return context


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """Raises SetupError."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    given = f"--ssl-certfile {settings.ssl_certfile}"
    if settings.ssl_keyfile:
        given += f" --ssl-keyfile {settings.ssl_keyfile}"
    try:
        # A key behind a password would be asked for on the terminal.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password=str)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror or str(error)
        raise SetupError(f"{given}: cannot be used ({why})") from None
    return context

"""`continuo serve` and `continuo gateway`, from binding the port to shutdown.

SIGTERM drains: new connections are refused, and active responses may finish within
`--drain-grace-s`; the connection of a session is closed with 1012 as soon as the session has no
active response. SIGINT does not wait for responses. A second signal exits at once. Signals in quick
succession count as one, because `make` repeats a signal that its process group has received.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import msgspec

from continuo.engine import EngineClient, EngineError, LinkSecurity
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.process.console import LoadProgress, print_line, print_welcome
from continuo.realtime.server.process.engine_discovery import discover_engines
from continuo.realtime.server.process.shutdown import ShutdownSignals, wait_until_idle
from continuo.realtime.server.process.web_server import WebServer, bind, port_unavailable
from continuo.realtime.store import Store, StoreError, is_redis_url, open_store

EngineSource = Callable[[GatewaySettings], AbstractAsyncContextManager[EngineClient]]


async def serve(settings: GatewaySettings) -> int:
    """Run a gateway with an engine of its own. Returns the exit status. Raises SetupError."""
    return await _run(settings, _local_engine)


async def serve_gateway(settings: GatewaySettings) -> int:
    """Run a gateway with remote engines. Returns the exit status. Raises SetupError."""
    return await _run(settings, _remote_engines)


@asynccontextmanager
async def _local_engine(settings: GatewaySettings) -> AsyncGenerator[EngineClient]:
    print_line(f"Loading {settings.engine.model} ...")
    try:
        engine = await EngineClient.start(settings.engine, LoadProgress())
    except EngineError as error:
        raise SetupError(error.message) from None
    try:
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def _remote_engines(settings: GatewaySettings) -> AsyncGenerator[EngineClient]:
    sources = [str(address) for address in settings.engines]
    if is_redis_url(settings.store):
        sources.append("those announced in Redis")
    print_line(f"Waiting for an engine: {', '.join(sources)} ...")
    security = LinkSecurity(settings.secret, _engine_tls(settings))
    store = settings.store if is_redis_url(settings.store) else None
    async with discover_engines(settings.engines, security, store) as engine:
        await engine.wait_until_ready()
        yield engine


async def _run(settings: GatewaySettings, source: EngineSource) -> int:
    recent_warnings = logging_setup.configure(settings.log_level, settings.tenants)
    tls = _server_tls(settings)
    signals = ShutdownSignals()
    with bind(settings.host, settings.port) as sock:
        readiness_gate = ReadinessGate()
        server = WebServer(readiness_gate, settings, lambda: None, tls)
        serving = asyncio.create_task(server.serve([sock]), name="http")
        async with AsyncExitStack() as stack:
            try:
                store = await stack.enter_async_context(_opened_store(settings))
                engine = await signals.run_unless_stopped(
                    stack.enter_async_context(source(settings))
                )
                if engine is None:
                    return 0
                settings = _with_model_name(settings, engine)
                if engine.text.template is not None:
                    await asyncio.to_thread(engine.text.template.probe_short_view)
                app = build_app(engine, settings, store, recent_warnings)
                await stack.enter_async_context(app.state.registry.running())
                readiness_gate.set_app(app, engine, store)
                print_welcome(engine, settings, sock)
                return await _wait_until_stopped(readiness_gate, engine, serving, signals, settings)
            finally:
                server.should_exit = True
                try:
                    await serving
                except OSError as error:
                    raise port_unavailable(settings.host, settings.port, error) from None


@asynccontextmanager
async def _opened_store(settings: GatewaySettings) -> AsyncGenerator[Store]:
    """Yield the opened store, and close it on exit. Raises SetupError."""
    url = "sqlite://:memory:" if settings.store == "memory" else settings.store
    try:
        store = await open_store(url, settings.durability)
    except StoreError as error:
        raise SetupError(f"--store: {error}") from None
    try:
        yield store
    finally:
        await store.aclose()


def _with_model_name(settings: GatewaySettings, engine: EngineClient) -> GatewaySettings:
    """Return the settings with the model name of the engines as served name, unless served names
    are configured."""
    if settings.served_model_name:
        return settings
    return msgspec.structs.replace(settings, served_model_name=(engine.ready.model,))


async def _wait_until_stopped(
    readiness_gate: ReadinessGate,
    engine: EngineClient,
    serving: "asyncio.Task[None]",
    signals: ShutdownSignals,
    settings: GatewaySettings,
) -> int:
    stopped, lost = (
        asyncio.create_task(signals.wait()),
        asyncio.create_task(engine.wait_until_lost()),
    )
    await asyncio.wait((serving, stopped, lost), return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        print_line("continuo: the engine process was lost; stopping.")
        return 1
    lost.cancel()
    stopped.cancel()
    readiness_gate.is_draining = True
    if signals.is_graceful:
        print_line("Stopping. Active responses finish first; signal again to stop at once.")
        readiness_gate.state.registry.drain()
        await wait_until_idle(lambda: engine.active_turns, settings.drain_grace_s)
    else:
        print_line("Stopping.")
    return 0


def _engine_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of links to engines. Returns None without TLS. Raises SetupError."""
    if settings.engine_cafile is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.engine_cafile)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SetupError(f"--engine-cafile {settings.engine_cafile}: {reason}") from None
    context.check_hostname = False  # a trusted CA is enough: an engine may have many addresses
    return context


def _server_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of the server. Returns None without TLS. Raises SetupError."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    option = f"--ssl-certfile {settings.ssl_certfile}"
    if settings.ssl_keyfile:
        option += f" --ssl-keyfile {settings.ssl_keyfile}"
    try:
        # An empty password: without one, OpenSSL would prompt on the terminal.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password=str)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise SetupError(f"{option}: cannot be used ({reason})") from None
    return context

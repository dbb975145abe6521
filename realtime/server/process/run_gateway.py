"""`continuo serve` and `continuo gateway`, from binding the port to shutdown.

SIGTERM drains: new connections are refused, and active responses may finish within
`--drain-grace-s`; the connection of a session is closed with 1012 as soon as the session has no
active response. SIGINT does not wait for responses. A second signal exits at once. Signals in quick
succession count as one, because `make` repeats a signal that its process group has received.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)

import msgspec
from starlette.applications import Starlette

from continuo.engine import (
    EngineClient,
    EngineError,
    LinkSecurity,
    flush_traces,
    print_line,
    run_in_thread,
)
from continuo.realtime import tracing
from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup, tracing_setup
from continuo.realtime.server.config.settings import (
    DEFAULT_PORT,
    GatewaySettings,
    SettingsSource,
    load_access_policy,
)
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.process import file_descriptors
from continuo.realtime.server.process.certificate import make_engine_tls, make_server_tls
from continuo.realtime.server.process.console import LoadProgress, print_welcome
from continuo.realtime.server.process.reload import Reloader
from continuo.realtime.server.process.shutdown import ShutdownSignals, wait_until_idle
from continuo.realtime.server.process.web_server import (
    WebServer,
    bind,
    bind_next_free,
    port_unavailable,
)
from continuo.realtime.store import (
    Store,
    StoreError,
    StoreUnavailable,
    is_redis_url,
    open_store,
)

SWITCH_INTERVAL_S = 0.001
"""Time after which a thread that tokenizes or renders lets the event loop run, in seconds. Python's
default is five times as long."""
STORE_RETRY_S = 0.5
"""Pause between two attempts to open a store that does not respond."""

EngineSource = Callable[[GatewaySettings], AbstractAsyncContextManager[EngineClient]]


async def serve(source: SettingsSource) -> int:
    """Run a gateway with an engine of its own. Returns the exit status. Raises SetupError."""
    return await _run(source, _local_engine)


async def serve_gateway(source: SettingsSource) -> int:
    """Run a gateway with remote engines. Returns the exit status. Raises SetupError."""
    return await _run(source, _remote_engines)


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
    # The client of Redis is slow to import.
    from continuo.realtime.server.process.engine_discovery import (  # noqa: PLC0415
        discover_engines,
    )

    security = LinkSecurity(settings.secret, make_engine_tls(settings))
    store = settings.store if is_redis_url(settings.store) else None
    async with discover_engines(settings.engines, security, store) as engine:
        await engine.wait_until_ready()
        yield engine


async def _run(settings_source: SettingsSource, source: EngineSource) -> int:
    settings = settings_source.read()
    tracing_setup.check_installed(settings.otlp_traces_endpoint)
    policy = load_access_policy(settings)
    recent_warnings = logging_setup.configure(
        settings.log_level, policy.plain_keys, settings.log_format
    )
    file_descriptors.warn_if_too_few(file_descriptors.raise_limit(), settings.limits)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tls = make_server_tls(settings.ssl_certfile, settings.ssl_keyfile)
    signals = ShutdownSignals()
    with _bind(settings) as sock:
        readiness_gate = ReadinessGate(policy, root_path=settings.root_path)
        server = WebServer(readiness_gate, settings, lambda: None, tls)
        serving = asyncio.create_task(server.serve([sock]), name="http")
        async with AsyncExitStack() as stack:
            try:
                store = await signals.run_unless_stopped(
                    stack.enter_async_context(_opened_store(settings))
                )
                if store is None:
                    return 0
                importing = asyncio.create_task(run_in_thread("imports", _import_build_app))
                engine = await signals.run_unless_stopped(
                    stack.enter_async_context(source(settings))
                )
                if engine is None:
                    return 0
                build_app = await importing
                as_read, settings = settings, _with_model_name(settings, engine)
                if engine.text.template is not None:
                    await run_in_thread("chat template", engine.text.template.prepare)
                stack.enter_context(_exported_traces(settings))
                app = build_app(engine, settings, store, recent_warnings, signals.request_drain)
                await stack.enter_async_context(app.state.registry.running())
                reloader = Reloader(settings_source, as_read, app.state, tls)
                await stack.enter_async_context(
                    _running(
                        reloader.run(signals.reload_requested),
                        app.state.authenticator.keep_public_keys_fresh(),
                    )
                )

                def close_tenant(tenant: str) -> None:
                    app.state.registry.close_tenant(tenant)
                    app.state.responses.close_tenant(tenant)
                    app.state.token_sessions.close_tenant(tenant)

                await stack.enter_async_context(app.state.tenants.exchanging(store, close_tenant))
                recovery = app.state.registry.recovery
                readiness_gate.set_app(app, engine.fleet, store, recovery)
                print_welcome(engine, settings, sock, app.state.demo_token)
                return await _wait_until_stopped(readiness_gate, engine, serving, signals, settings)
            finally:
                server.should_exit = True
                try:
                    await serving
                except OSError as error:
                    raise port_unavailable(settings.host, settings.port, error) from None


def _import_build_app() -> Callable[..., Starlette]:
    """Import the routes and all that they use, which the gateway does while its engine loads."""
    from continuo.realtime.server.http.app import build_app  # noqa: PLC0415

    return build_app


def _bind(settings: GatewaySettings) -> socket.socket:
    """Return the listening socket. A demonstration takes the next free port in place of the default
    one. Raises SetupError."""
    if not settings.demo or settings.port != DEFAULT_PORT:
        return bind(settings.host, settings.port)
    sock = bind_next_free(settings.host, settings.port)
    if (port := sock.getsockname()[1]) != settings.port:
        print_line(f"Port {settings.port} is in use by another program: taking {port}.")
    return sock


@contextmanager
def _exported_traces(settings: GatewaySettings) -> Generator[None]:
    """Export traces of turns, if a collector is configured. Raises SetupError."""
    name = settings.served_model_name[0]
    provider = tracing_setup.configure(settings.otlp_traces_endpoint, name)
    try:
        yield
    finally:
        tracing.set_recorder(None)
        if provider is not None:
            flush_traces(provider)


@asynccontextmanager
async def _running(*work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Run tasks until the end of the context."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _opened_store(settings: GatewaySettings) -> AsyncGenerator[Store]:
    """Yield the opened store, and close it on exit. Waits for a store that does not respond yet.
    Raises SetupError."""
    store = await _open_when_available(settings)
    try:
        yield store
    finally:
        await store.aclose()


async def _open_when_available(settings: GatewaySettings) -> Store:
    url = "sqlite://:memory:" if settings.store == "memory" else settings.store
    cause = ""
    while True:
        try:
            return await open_store(url, settings.durability)
        except StoreUnavailable as error:
            if str(error) != cause:
                cause = str(error)
                print_line(f"Waiting for the store: {cause} ...")
        except StoreError as error:
            raise SetupError(f"--store: {error}") from None
        await asyncio.sleep(STORE_RETRY_S)


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
        asyncio.create_task(engine.fleet.wait_until_lost()),
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
        await wait_until_idle(lambda: engine.fleet.active_turns, settings.drain_grace_s)
    else:
        print_line("Stopping.")
    await engine.grammar_trials.stop()  # requests that wait for a trial would delay the exit
    return 0

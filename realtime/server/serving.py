"""`continuo serve`, from the port to the farewell."""

import asyncio
import os
import signal
import socket
import ssl
import sys

from starlette.applications import Starlette

from engine import Engine, EngineError
from realtime.errors import SetupError
from realtime.server import logs
from realtime.server.app import Server, bind, build, not_free
from realtime.server.settings import DEFAULT_PORT, Settings
from realtime.store import open_store


async def serve(settings: Settings) -> int:
    """Returns the exit status. Raises SetupError."""
    recent = logs.configure(settings.log_level, settings.tenants)
    tls = _tls(settings)
    stop = _on_signals()
    with bind(settings.host, settings.port) as sock:
        engine = await _load(settings, stop)
        if engine is None:
            return 0
        store = await open_store("sqlite://:memory:")
        try:
            app = build(engine, settings, recent, store)
            return await _serve(app, engine, settings, sock, stop, tls)
        finally:
            await engine.stop()
            await store.aclose()


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


def _on_signals() -> asyncio.Event:
    """Set by the first; the second does not wait for anybody."""
    stop = asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    return stop


async def _load(settings: Settings, stop: asyncio.Event) -> Engine | None:
    """None: stopped while it loaded."""
    _say(f"Loading {settings.engine.model} ...")
    loading = asyncio.create_task(Engine.start(settings.engine, _Progress()))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done():
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        return None
    try:
        return loading.result()
    except EngineError as error:
        raise SetupError(error.message) from None


async def _serve(
    app: Starlette,
    engine: Engine,
    settings: Settings,
    sock: socket.socket,
    stop: asyncio.Event,
    tls: ssl.SSLContext | None,
) -> int:
    server = Server(app, settings, lambda: _welcome(engine, settings, sock), tls)
    serving = asyncio.create_task(server.serve([sock]))
    stopping = asyncio.create_task(stop.wait())
    lost = asyncio.create_task(engine.lost())
    await asyncio.wait((serving, stopping, lost), return_when=asyncio.FIRST_COMPLETED)
    status = 0
    if lost.done():
        _say("continuo: the engine process is gone; stopping.")
        status = 1
    elif stopping.done():
        _say("Stopping.")
    stopping.cancel()
    lost.cancel()
    server.should_exit = True
    try:
        await serving
    except OSError as error:
        raise not_free(settings.host, settings.port, error) from None
    return status


class _Progress:
    """Says a stage once, when it begins; in a terminal, how far it is."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, what: str, fraction: float) -> None:
        if sys.stdout.isatty():
            end = "\n" if fraction >= 1 else ""
            print(f"\r\x1b[K  {what} {fraction:.0%}", end=end, flush=True)
        elif what != self._stage:
            self._stage = what
            _say(f"  {what}")


def _welcome(engine: Engine, settings: Settings, sock: socket.socket) -> None:
    ready = engine.ready
    name, port = settings.served_model_name or (settings.engine.model,), sock.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "wss" if settings.ssl_certfile else "ws"
    url = f"{scheme}://{host}:{port}"
    chat = "continuo chat"
    if settings.ssl_certfile or port != DEFAULT_PORT or not settings.loopback:
        chat += f" --url {url}"
    if settings.tenants:
        chat += " --api-key YOUR_KEY"
    page = f"  Open           http{url.removeprefix('ws')}/\n" if settings.web else ""
    _say(
        f"Ready after {ready.load_s:.1f} s: {name[0]} on {ready.device}, {ready.dtype}, "
        f"{ready.max_model_len:,} tokens of context.\n"
        f"\n"
        f"{page}"
        f"  Listening on   {url}/v1/realtime\n"
        f"  Talk to it     {chat}\n"
        f"  Stop it        Ctrl-C\n"
    )


def _say(text: str) -> None:
    print(text, flush=True)

"""The web application and its uvicorn, hardened against clients that hold on (`guards`).

reads nothing any more      the kernel drops it USER_TIMEOUT_MS after the first unanswered byte
silent                      pinged every PING_S, dropped after PING_S without an answer
sends too much              refused by us up to twice the frame limit, by close 1009 above
"""

import asyncio
import contextlib
import ctypes
import errno
import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from typing import ClassVar

import uvicorn
from starlette.applications import Starlette

from continuo.engine import Engine, Sampling
from continuo.realtime.errors import SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.core import Settings as SessionSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.service import Responses
from continuo.realtime.server import replies
from continuo.realtime.server.auth.client_secrets import KeptSecrets, SealedSecrets
from continuo.realtime.server.auth.gate import Gate
from continuo.realtime.server.config.settings import Settings
from continuo.realtime.server.garbage_collection import collect
from continuo.realtime.server.hardening.guarded_http import GuardedHttp
from continuo.realtime.server.hardening.guarded_websocket import GuardedWebSocket
from continuo.realtime.server.hardening.incoming_budget import IncomingBytes
from continuo.realtime.server.hardening.read_turns import Turns
from continuo.realtime.server.http.chat_routes import CompletionRoutes
from continuo.realtime.server.http.page import Page
from continuo.realtime.server.http.readiness import Entrance
from continuo.realtime.server.http.realtime_routes import Routes
from continuo.realtime.server.http.responses_routes import ResponseRoutes
from continuo.realtime.server.http.served_model import Model, Served
from continuo.realtime.server.http.session_routes import SessionRoutes
from continuo.realtime.server.http.stats_routes import StatsRoutes
from continuo.realtime.server.logging_setup import Recent
from continuo.realtime.store import Store

PING_S = 20.0
USER_TIMEOUT_MS = 20_000
SHUTDOWN_S = 5


def build(
    engine: Engine, settings: Settings, store: Store, recent: Recent | None = None
) -> Starlette:
    """Raises SetupError where the model cannot hold a conversation."""
    template = engine.text.template
    if template is None:
        raise SetupError(
            f"{engine.ready.model} has no chat template, so it cannot hold a conversation: use the "
            "instruction-tuned version of it, or put a chat_template.jinja into its folder"
        )
    default = SessionSettings(sampling=Sampling(temperature=settings.temperature))
    registry = Registry(engine, template, default, settings.limits, store, settings.secret)
    engine.on_superseded = registry.superseded
    responses = Responses(
        engine,
        template,
        default,
        settings.limits,
        registry.scope,
        store,
        registry.rates,
        registry.layout,
    )
    names = settings.served_model_name or (settings.engine.model,)
    now = int(time.time())
    served = Served(
        [Model(id=name, created=now, max_model_len=engine.ready.max_model_len) for name in names]
    )
    secrets = SealedSecrets(settings.secret) if settings.secret else KeptSecrets()
    gate = Gate(settings.tenants, settings.allowed_origins, secrets)
    routes = Routes(registry, gate, served, settings.limits, lambda: engine.up)
    sessions = SessionRoutes(registry, gate, secrets, settings.limits, names[0])
    stats = StatsRoutes(
        engine,
        registry,
        gate,
        recent or Recent(),
        show_warnings=len({*settings.tenants.values()}) <= 1,
    )
    page = Page(gate=gate).all() if settings.web else []
    answering = [
        *ResponseRoutes(responses, gate, served).all(),
        *CompletionRoutes(responses, gate, served).all(),
    ]
    app = Starlette(
        routes=[*routes.all(), *stats.all(), *sessions.all(), *answering, *page],
        exception_handlers={Exception: replies.broke},
    )
    app.router.default = replies.nothing_here
    app.state.responses = responses
    app.state.registry = registry
    return app


BACKLOG = 2048
"""Connections that may wait to be accepted."""


def bind(host: str, port: int, option: str = "--host") -> socket.socket:
    """A listening socket, ours from here on: who connects before the model is loaded waits. Raises
    SetupError if the port is taken."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise SetupError(f"{option} {host}: {error.strerror}") from None
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise not_free(host, port, error) from None
    return sock


def not_free(host: str, port: int, error: OSError) -> SetupError:
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = "something else uses it; stop that, or choose another with --port"
    return SetupError(f"cannot listen on port {port} of {host}: {why}")


def _http(incoming: IncomingBytes, turns: Turns) -> type[GuardedHttp]:
    class Http(GuardedHttp):
        pass

    Http.incoming, Http.turns = incoming, turns
    return Http


def _websocket(limits: Limits, incoming: IncomingBytes, turns: Turns) -> type[GuardedWebSocket]:
    class WebSocket(GuardedWebSocket):
        corked: ClassVar[list[GuardedWebSocket]] = []
        message_bytes_max: ClassVar[Mapping[str, int]] = {
            "/v1/responses": limits.response_frame_bytes_max * 5 // 4
        }

    WebSocket.incoming, WebSocket.turns = incoming, turns
    return WebSocket


LARGE_BLOCK_BYTES = 1024 * 1024
"""Freed blocks of so many bytes go back to the system. Else glibc raises that bound to 32 MiB with
the first large message that is freed, and keeps up to 270 MiB after many of them at once."""
_M_MMAP_THRESHOLD = -3
"""Number of the mallopt parameter in malloc.h of glibc."""


def return_large_blocks() -> None:
    """Does nothing where the C library is another."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


class Server(uvicorn.Server):
    """Leaves the signals to who runs it, and says when it listens."""

    def __init__(
        self,
        app: Starlette | Entrance,
        settings: Settings,
        on_listening: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ):
        self.incoming, turns = IncomingBytes(settings.limits.incoming_bytes_max), Turns()
        super().__init__(
            uvicorn.Config(
                app,
                http=_http(self.incoming, turns),
                ws=_websocket(settings.limits, self.incoming, turns),
                ws_max_size=2 * settings.limits.frame_bytes_max,
                ws_per_message_deflate=False,
                ws_ping_interval=PING_S,
                ws_ping_timeout=PING_S,
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
                ssl_context_factory=(lambda config, default: tls) if tls else None,
            )
        )
        self._on_listening = on_listening
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._collecting = asyncio.create_task(collect(), name="collect")
        return_large_blocks()
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._collecting.cancel()
        responses: Responses | None = getattr(self._app.state, "responses", None)
        if responses is not None:
            await responses.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

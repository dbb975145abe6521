"""The web server: uvicorn with guarded connections, and its listening socket."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from typing import ClassVar, cast

import uvicorn
from starlette.applications import Starlette

from continuo.engine import collect_garbage
from continuo.realtime.errors import SetupError
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.freed_memory import give_back_when_grown, return_large_blocks
from continuo.realtime.server.hardening.guarded_http import GuardedHttp
from continuo.realtime.server.hardening.guarded_websocket import GuardedWebSocket
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.http.request_observer import RequestObserver
from continuo.realtime.server.incoming_budget import IncomingBudget

PING_S = 20.0
"""Interval of WebSocket pings, and the timeout of each pong, in seconds."""
USER_TIMEOUT_MS = 20_000
"""TCP_USER_TIMEOUT: the kernel drops a connection whose sent data stays unacknowledged for this
time."""
SHUTDOWN_S = 5
"""Timeout of uvicorn's graceful shutdown, in seconds."""
PORTS_TRIED = 10
"""Number of ports that `bind_next_free` tries."""
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""
TLS_HANDSHAKE_TIMEOUT_S = 10.0
"""Time of a TLS handshake; the head of the first request has as long after it."""


SEND_BUFFER_BYTES = 128 * 1024
"""Send buffer of the kernel for each client, which Linux doubles. Without a limit, one that does
not read takes megabytes."""

ACCEPTS_MAX = 16
"""Connections that are accepted in one iteration of the event loop. libuv accepts one for each
descriptor of a listening socket, so the socket has this many. With one, a client that connected
just after 500 others waited for up to 0.4 s."""


def bind(
    host: str, port: int, option: str = "--host", send_buffer_bytes: int | None = SEND_BUFFER_BYTES
) -> socket.socket:
    """Return a listening socket. Clients that connect before the model is loaded wait in its
    backlog. `send_buffer_bytes` None: as the kernel chooses. Raises SetupError if the port is
    unavailable."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise SetupError(f"{option} {host}: {error.strerror}") from None
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer_bytes is not None:  # accepted sockets inherit it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise port_unavailable(host, port, error) from None
    return sock


class PortInUse(SetupError):
    """Another process listens on the port."""


def bind_next_free(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `port` or, if that is in use, on one of the next ports.
    Raises SetupError."""
    for number in range(port, port + PORTS_TRIED - 1):
        with contextlib.suppress(PortInUse):
            return bind(host, number)
    return bind(host, port + PORTS_TRIED - 1)


def port_unavailable(host: str, port: int, error: OSError) -> SetupError:
    """Return the SetupError that explains why listening on a port failed."""
    where = f"cannot listen on port {port} of {host}"
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"{where}: the port is in use by another process; choose another with --port"
        )
    return SetupError(f"{where}: {error.strerror or error}")


def _http_protocol(budget: IncomingBudget, read_turns: ReadTurns) -> type[GuardedHttp]:
    class Http(GuardedHttp):
        pass

    Http.incoming_budget, Http.read_turns = budget, read_turns
    return Http


def _websocket_protocol(
    settings: GatewaySettings, budget: IncomingBudget, read_turns: ReadTurns
) -> type[GuardedWebSocket]:
    responses_bytes_max = settings.limits.response_frame_bytes_max * 5 // 4

    class WebSocket(GuardedWebSocket):
        corked_sockets: ClassVar[list[GuardedWebSocket]] = []
        message_bytes_max: ClassVar[Mapping[str, int]] = {
            f"{prefix}/v1/responses": responses_bytes_max for prefix in ("", settings.root_path)
        }

    WebSocket.incoming_budget, WebSocket.read_turns = budget, read_turns
    return WebSocket


class WebServer(uvicorn.Server):
    """A uvicorn server without signal handlers; calls `on_listening` once it accepts
    connections."""

    def __init__(
        self,
        app: Starlette | ReadinessGate,
        settings: GatewaySettings,
        on_listening: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ):
        self.incoming_budget, turns = (
            IncomingBudget(settings.limits.incoming_bytes_max),
            ReadTurns(),
        )
        super().__init__(
            uvicorn.Config(
                RequestObserver(app),
                http=_http_protocol(self.incoming_budget, turns),
                ws=_websocket_protocol(settings, self.incoming_budget, turns),
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
                ssl_context_factory=(lambda _config, _default: tls) if tls else None,
            )
        )
        self._on_listening = on_listening
        self.app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        self._duplicates = [sock.dup() for sock in sockets for _ in range(ACCEPTS_MAX - 1)]
        self.servers = [await self._listen(sock) for sock in (*sockets, *self._duplicates)]
        self.started = True
        self._memory_tasks = [
            asyncio.create_task(collect_garbage(), name="collect"),
            asyncio.create_task(give_back_when_grown(), name="give back"),
        ]
        return_large_blocks()
        self._on_listening()

    async def _listen(self, sock: socket.socket) -> asyncio.Server:
        """Accept connections on a socket. uvicorn's own `startup` sets no limit on the time of a
        TLS handshake, which is a minute then."""
        config = self.config
        protocol_class = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)

        def create_protocol() -> asyncio.Protocol:
            return protocol_class(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        timeout_s = TLS_HANDSHAKE_TIMEOUT_S if config.ssl else None
        return await asyncio.get_running_loop().create_server(
            create_protocol,
            sock=sock,
            ssl=config.ssl,
            backlog=BACKLOG,
            ssl_handshake_timeout=timeout_s,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown([*(sockets or []), *self._duplicates])
        for task in self._memory_tasks:
            task.cancel()
        responses: ResponseService | None = getattr(self.app.state, "responses", None)
        if responses is not None:
            await responses.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

"""Connection to one engine process: connects, detects silence, and reconnects with backoff."""

import asyncio
import itertools
import logging
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from continuo.engine.errors import EngineError, LinkRefused, ModelError
from continuo.engine.wire.handshake import LINK_VERSION, LINK_VERSION_MIN, ClientHandshake
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    EngineCommand,
    EngineEvent,
    EngineLoad,
    EngineReady,
    ModelLoadFailed,
    ModelLoading,
    Ping,
    Pong,
    TurnEnded,
    TurnTokens,
)

log = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
UNRESPONSIVE_AFTER_S = 3.0
"""Silence after which a connected engine counts as unresponsive."""
UNAVAILABLE_AFTER_S = 15.0
"""Silence after which a disconnected engine is no longer expected to return soon."""
DEVICE_HANG_S = 30.0
"""Duration of one step after which the device counts as hung: the engine counts as silent since the
step began, even if it sends events. The limit is long because the first step of a kind may compile
for many seconds."""
DISCONNECT_AFTER_S = 60.0
"""Silence after which the link is closed and reconnected; a child process is killed and
restarted."""
RESTART_BACKOFF_S = (0.0, 0.5, 2.0, 5.0, 10.0)
"""Delays before successive attempts to restart a child process; if the last attempt fails, no more
are made."""
RECONNECT_BACKOFF_S_MAX = 2.0
READY_TIMEOUT_S = 10.0
"""Limit for a remote engine, whose model is already loaded, to send EngineReady on a new link, and
for the TLS handshake before."""
EVENTS_PER_SLICE = 16
"""Maximum number of events delivered to the observer in one round of the event loop. Between rounds
the event loop sends the resulting output and serves other tasks."""
CONNECT_TIMEOUT_S = 3.0
"""Limit for connecting to one address."""

EngineLauncher = Callable[[], Awaitable[socket.socket]]
OnLoading = Callable[[str, float], None]
Backoff = Callable[[], Iterator[float]]


def restart_backoff() -> Iterator[float]:
    """Return the delays before restarts of a child process: finitely many, because the process may
    never start."""
    return iter(RESTART_BACKOFF_S)


def reconnect_backoff() -> Iterator[float]:
    """Yield the delays before attempts to reach a remote engine: endless, because the engine may
    return at any time."""
    yield 0.0
    for attempt in itertools.count():
        yield min(0.1 * 2**attempt, RECONNECT_BACKOFF_S_MAX) * random.uniform(0.5, 1.0)


class LinkSecurity(msgspec.Struct, frozen=True):
    """Authentication between a gateway and a remote engine."""

    secret: bytes = b""
    """Secret shared with the engine; empty: no authentication, which is enough on one machine."""
    tls: ssl.SSLContext | None = None
    hostname: str | None = None
    """Name that the engine's certificate must have, if `tls` verifies it."""


class ConnectionObserver(Protocol):
    """Receiver of the events of a connection."""

    @property
    def client_id(self) -> str:
        """Id of this client, the same on all its links."""
        ...

    def on_events(self, connection: "EngineConnection", events: list[EngineEvent]) -> None: ...
    def on_ready(self, ready: EngineReady) -> None:
        """Check the engine that has sent `ready` on a new link. Raises LinkRefused if its model
        differs from that of the other engines."""
        ...

    def on_connected(self, connection: "EngineConnection") -> None: ...
    def on_disconnected(self, connection: "EngineConnection") -> None: ...
    def on_given_up(self, connection: "EngineConnection") -> None: ...


class EngineConnection:
    """Connection to one engine, which `run_with_restarts` keeps alive over successive links.

    `link_epoch` counts the links: commands sent on an earlier link may not have arrived.
    """

    def __init__(
        self,
        name: str,
        launch: EngineLauncher,
        observer: ConnectionObserver,
        *,
        backoff: Backoff = restart_backoff,
        security: LinkSecurity | None = None,
        on_loading: OnLoading = lambda _what, _fraction: None,
    ) -> None:
        """Args:
        name: for logs and reports; `HOST:PORT` of a remote engine, by which EngineFleet finds it
            again.
        launch: returns a socket connected to the engine, once for each link; for a child process,
            also starts it.
        observer: receives the events of all links, in the order in which the engine sent them.
        backoff: yields the seconds to wait before each attempt to connect, from its beginning after
            each link that is lost; once it is exhausted, no more attempts are made.
        security: set for a remote engine: both ends then run the handshake. None: a child process.
        on_loading: called with the name of a step of loading the model and its progress, from 0 to
            1, until the engine is ready.
        """
        self.name = name
        self.is_connected = False
        self.link_epoch = 0
        self.link_version = LINK_VERSION
        """Version of the link protocol that is offered to the engine. After no answer, the version
        before is offered, then this one again."""
        self.ready: EngineReady | None = None
        self.load = EngineLoad()
        self.placed_sessions = 0
        """Sessions placed on this engine since it last reported its load."""
        self.disconnected_since_s = time.monotonic()
        """Monotonic time of the last disconnect."""
        self._launch = launch
        self._observer = observer
        self._backoff = backoff
        self._security = security
        self._on_loading = on_loading
        self._received_s = 0.0
        self._undelivered: deque[EngineEvent] = deque()
        """Received events that are not delivered to the observer yet."""
        self._link: Link[EngineCommand, EngineEvent] | None = None
        self._ready_future: asyncio.Future[EngineReady] | None = None
        self._disconnected = asyncio.Event()
        self._is_closed = False

    @property
    def incarnation(self) -> str:
        """Incarnation of the engine that last connected; empty before the first one."""
        return self.ready.incarnation if self.ready is not None else ""

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last sent data, or since its step in flight began if its device
        hangs (DEVICE_HANG_S)."""
        hangs_s = self.load.step_s if self.load.step_s > DEVICE_HANG_S else 0.0
        return max(time.monotonic() - self._received_s, hangs_s)

    @property
    def is_responsive(self) -> bool:
        return self.is_connected and self.silent_s < UNRESPONSIVE_AFTER_S

    @property
    def is_available_soon(self) -> bool:
        """Whether the engine responds or may soon do so: a disconnected one may be restarting."""
        return self.silent_s < (UNRESPONSIVE_AFTER_S if self.is_connected else UNAVAILABLE_AFTER_S)

    def send(self, commands: Sequence[EngineCommand]) -> None:
        assert self._link is not None
        self._link.send_all(commands)

    async def run_with_restarts(self) -> None:
        """Connect, and reconnect after each loss, until the backoff is exhausted or `close` is
        called. Reconnecting to a child process starts it again."""
        delays = self._backoff()
        while not self._is_closed:
            if self.is_connected:
                await self._disconnected.wait()
                delays = self._backoff()
            elif (delay_s := next(delays, None)) is None:
                self._observer.on_given_up(self)
                return
            else:
                await asyncio.sleep(delay_s)
                try:
                    await self.connect()
                except (EngineError, OSError) as error:
                    log.warning("engine %s: %s", self.name, error)

    async def connect(self) -> None:
        """Connect once and wait until the engine is ready. Raises ModelError, LinkRefused, OSError,
        TimeoutError."""
        event_loop = asyncio.get_running_loop()
        self._ready_future = event_loop.create_future()
        security = self._security
        handshake = ClientHandshake(security.secret, self.link_version) if security else None
        tls = security.tls if security else None
        decoder = msgspec.msgpack.Decoder(list[EngineEvent])
        link: Link[EngineCommand, EngineEvent] = Link(
            decoder,
            lambda events: self._receive(link, events),
            lambda: self._handle_link_lost(link),
            handshake,
        )
        self._link = link
        hostname = security.hostname if security and tls else None
        try:
            sock = await self._launch()
            async with asyncio.timeout(READY_TIMEOUT_S if security else None):
                await event_loop.create_connection(
                    lambda: link, sock=sock, ssl=tls, server_hostname=hostname
                )
        except BaseException:
            link.release()
            raise
        try:
            async with asyncio.timeout(READY_TIMEOUT_S if security else None):
                ready = await self._ready_future
            self._observer.on_ready(ready)
        except (LinkRefused, TimeoutError):
            link.abort()
            raise
        except ModelError:
            if handshake is not None and not handshake.is_answered:
                is_oldest = self.link_version == LINK_VERSION_MIN
                self.link_version = LINK_VERSION if is_oldest else self.link_version - 1
            raise
        link.send(Ping(0, self._observer.client_id))
        self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.ready = ready
        self.link_epoch += 1
        self.is_connected = True
        self._disconnected.clear()
        self._observer.on_connected(self)

    def ping(self, *, is_late: bool) -> None:
        """Send a ping, once per PING_INTERVAL_S, and disconnect an engine that is silent for too
        long. `is_late` means that this process itself was stalled, so that the measured silence of
        the engine does not count."""
        if not self.is_connected:
            return
        if is_late:
            self._received_s = time.monotonic()
            self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.send([Ping(0, self._observer.client_id)])
        if self.silent_s > DISCONNECT_AFTER_S:
            self.disconnect(f"no sign of life for {DISCONNECT_AFTER_S:.0f} s")

    def disconnect(self, reason: str) -> None:
        """Abort the current link; nothing more is received on it. `run_with_restarts` then
        reconnects."""
        log.warning("engine %s: closing the link: %s", self.name, reason)
        if self._link is not None:
            self._link.abort()
            self._handle_link_lost(self._link)

    def close(self) -> None:
        """Close the connection for good, after sending queued commands."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()

    # ---- from the link ----------------------------------------------------------------------

    def _receive(self, link: Link[EngineCommand, EngineEvent], events: list[EngineEvent]) -> None:
        if link is not self._link:
            return
        self._received_s = time.monotonic()
        queue, has_slice_scheduled = self._undelivered, bool(self._undelivered)
        first_tokens_end, ended = len(queue), set[str]()
        for event in events:
            match event:
                case TurnTokens(first=0) if event.session not in ended:
                    # Move the first id of a turn before later ids of other turns: a user waits.
                    queue.insert(first_tokens_end, event)
                    first_tokens_end += 1
                case TurnTokens():
                    queue.append(event)
                case ModelLoading():
                    self._on_loading(event.what, event.fraction)
                case EngineReady():
                    self._resolve_ready(event)
                case ModelLoadFailed():
                    self._resolve_ready(ModelError(event.message))
                case Pong():
                    self.load, self.placed_sessions = event.load, 0
                case TurnEnded():
                    queue.append(event)
                    ended.add(event.session)
                case _:
                    queue.append(event)
                    first_tokens_end = len(queue)  # no event overtakes a reply
        if not has_slice_scheduled:
            self._deliver_slice()

    def _deliver_slice(self) -> None:
        queue = self._undelivered
        events = [queue.popleft() for _ in range(min(EVENTS_PER_SLICE, len(queue)))]
        try:
            if events:
                self._observer.on_events(self, events)
        finally:
            if queue:
                asyncio.get_running_loop().call_soon(self._deliver_slice)

    def _resolve_ready(self, ready: EngineReady | EngineError) -> None:
        if self._ready_future is None or self._ready_future.done():
            return
        if isinstance(ready, EngineReady):
            self._ready_future.set_result(ready)
        else:
            self._ready_future.set_exception(ready)

    def _handle_link_lost(self, link: Link[EngineCommand, EngineEvent]) -> None:
        if link is not self._link:
            return
        self._link = None
        while self._undelivered:
            self._deliver_slice()
        self._resolve_ready(
            link.handshake_error or ModelError("the link was closed before the engine was ready")
        )
        if not self.is_connected:
            return
        if not self._is_closed:
            log.warning(
                "engine %s: link lost; its work waits or moves to another engine", self.name
            )
        self.is_connected, self.disconnected_since_s = False, time.monotonic()
        self.link_version = LINK_VERSION
        self._disconnected.set()
        self._observer.on_disconnected(self)


async def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket connected to a remote engine. Tries each address of the host; raises OSError
    if none can be reached."""
    event_loop = asyncio.get_running_loop()
    error: OSError = OSError(f"{host}: no address")
    infos = await event_loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in infos:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await event_loop.sock_connect(sock, address)
        except OSError as failed:
            sock.close()
            error = failed if failed.errno else OSError(f"{host}:{port} does not respond")
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    try:
        raise error
    finally:
        del error  # which keeps this frame

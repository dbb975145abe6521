"""Peer: one engine as the front sees it, and the link to it, as many times as it takes."""

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
from continuo.engine.wire.handshake import ClientHandshake
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
"""An engine that has said nothing for so long does not answer."""
UNAVAILABLE_AFTER_S = 15.0
"""An engine that is not there, and of which nothing was heard for so long, may be away for long."""
DEVICE_HANG_S = 30.0
"""A device that has been at one step for so long hangs: its engine is as good as silent since that
step began, whatever it says. The first step of a kind may compile for many seconds."""
DISCONNECT_AFTER_S = 60.0
"""The link to one that has said nothing for so long is cut; a child is killed and started again."""
RESTART_BACKOFF_S = (0.0, 0.5, 2.0, 5.0, 10.0)
"""Before each attempt to start a child again; after the last one it is gone for good."""
RECONNECT_BACKOFF_S_MAX = 2.0
READY_TIMEOUT_S = 10.0
"""From being connected to an engine elsewhere, which is loaded, until it says so."""
EVENTS_PER_SLICE = 16
"""Events passed on at a time: then what was said of them is written, and others have their turn."""
CONNECT_TIMEOUT_S = 3.0
"""To reach one address."""

EngineLauncher = Callable[[], Awaitable[socket.socket]]
OnLoading = Callable[[str, float], None]
Backoff = Callable[[], Iterator[float]]


def restart_backoff() -> Iterator[float]:
    """Of a child: it may be broken for good."""
    return iter(RESTART_BACKOFF_S)


def reconnect_backoff() -> Iterator[float]:
    """Of an engine elsewhere: it may come back at any time."""
    yield 0.0
    for attempt in itertools.count():
        yield min(0.1 * 2**attempt, RECONNECT_BACKOFF_S_MAX) * random.uniform(0.5, 1.0)


class LinkSecurity(msgspec.Struct, frozen=True):
    """How a front and an engine elsewhere trust each other."""

    secret: bytes = b""
    """Empty: none, which is enough on one machine."""
    tls: ssl.SSLContext | None = None
    hostname: str | None = None
    """Whose certificate it must be, where `tls` checks that."""


class ConnectionObserver(Protocol):
    """Told what a peer does."""

    @property
    def client_id(self) -> str:
        """Of the front."""
        ...

    def on_events(self, peer: "EngineConnection", events: list[EngineEvent]) -> None: ...
    def on_ready(self, ready: EngineReady) -> None:
        """Raises LinkRefused for an engine that does not fit the others."""
        ...

    def on_connected(self, peer: "EngineConnection") -> None: ...
    def on_disconnected(self, peer: "EngineConnection") -> None: ...
    def on_given_up(self, peer: "EngineConnection") -> None: ...


class EngineConnection:
    """`run` keeps it up. `life` counts the links that were made: what was sent on an earlier one
    may not have arrived."""

    def __init__(
        self,
        name: str,
        launch: EngineLauncher,
        observer: ConnectionObserver,
        *,
        backoff: Backoff = restart_backoff,
        security: LinkSecurity | None = None,
        on_loading: OnLoading = lambda what, fraction: None,
    ) -> None:
        """`launch` returns a connected socket to the engine. `security`: it is elsewhere, and both
        ends prove who they are."""
        self.name = name
        self.is_connected = False
        self.link_epoch = 0
        self.ready: EngineReady | None = None
        self.load = EngineLoad()
        self.placed_sessions = 0
        """Sessions placed here since it last told its load."""
        self.disconnected_since_s = time.monotonic()
        """Since when it is not up."""
        self._launch = launch
        self._observer = observer
        self._backoff = backoff
        self._security = security
        self._on_loading = on_loading
        self._received_s = 0.0
        self._undelivered: deque[EngineEvent] = deque()
        """Not passed on yet."""
        self._link: Link[EngineCommand, EngineEvent] | None = None
        self._ready_future: asyncio.Future[EngineReady] | None = None
        self._disconnected = asyncio.Event()
        self._is_closed = False

    @property
    def silent_s(self) -> float:
        """Since it has last said anything; or done anything, if its device hangs."""
        hangs_s = self.load.step_s if self.load.step_s > DEVICE_HANG_S else 0.0
        return max(time.monotonic() - self._received_s, hangs_s)

    @property
    def is_responsive(self) -> bool:
        return self.is_connected and self.silent_s < UNRESPONSIVE_AFTER_S

    @property
    def is_available_soon(self) -> bool:
        """Whether it answers, or may soon: one that is not there may be starting again."""
        return self.silent_s < (UNRESPONSIVE_AFTER_S if self.is_connected else UNAVAILABLE_AFTER_S)

    def send(self, commands: Sequence[EngineCommand]) -> None:
        assert self._link is not None
        self._link.send_all(commands)

    async def run(self) -> None:
        """Brings it up, and up again, until it is gone for good or `close` is called."""
        waits = self._backoff()
        while not self._is_closed:
            if self.is_connected:
                await self._disconnected.wait()
                waits = self._backoff()
            elif (wait_s := next(waits, None)) is None:
                self._observer.on_given_up(self)
                return
            else:
                await asyncio.sleep(wait_s)
                try:
                    await self.connect()
                except (EngineError, OSError) as error:
                    log.warning("engine %s: %s", self.name, error)

    async def connect(self) -> None:
        """Once. Returns when it is up. Raises ModelError, LinkRefused, OSError."""
        here = asyncio.get_running_loop()
        self._ready_future = here.create_future()
        security = self._security
        greeting = ClientHandshake(security.secret) if security else None
        tls = security.tls if security else None
        decoder = msgspec.msgpack.Decoder(list[EngineEvent])
        link: Link[EngineCommand, EngineEvent] = Link(
            decoder,
            lambda events: self._receive(link, events),
            lambda: self._handle_link_lost(link),
            greeting,
        )
        self._link = link
        sock = await self._launch()
        hostname = security.hostname if security and tls else None
        await here.create_connection(lambda: link, sock=sock, ssl=tls, server_hostname=hostname)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S if security else None):
                ready = await self._ready_future
            self._observer.on_ready(ready)
        except (LinkRefused, TimeoutError):
            link.abort()
            raise
        link.send(Ping(0, self._observer.client_id))
        self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.ready = ready
        self.link_epoch += 1
        self.is_connected = True
        self._disconnected.clear()
        self._observer.on_connected(self)

    def ping(self, *, is_late: bool) -> None:
        """Every PING_S. `late`: we were asleep ourselves, and cannot say that it was silent."""
        if not self.is_connected:
            return
        if is_late:
            self._received_s = time.monotonic()
            self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.send([Ping(0, self._observer.client_id)])
        if self.silent_s > DISCONNECT_AFTER_S:
            self.disconnect(f"it has said or done nothing for {DISCONNECT_AFTER_S:.0f} s")

    def disconnect(self, reason: str) -> None:
        """Nothing more is heard of this life of it."""
        log.warning("engine %s: the link is cut: %s", self.name, reason)
        if self._link is not None:
            self._link.abort()
            self._handle_link_lost(self._link)

    def close(self) -> None:
        """For good; what was sent arrives."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()

    # ---- from the link ----------------------------------------------------------------------

    def _receive(self, link: Link[EngineCommand, EngineEvent], events: list[EngineEvent]) -> None:
        if link is not self._link:
            return
        self._received_s = time.monotonic()
        heard, waiting = self._undelivered, bool(self._undelivered)
        beginnings, ended = len(heard), set[str]()
        for event in events:
            match event:
                case TurnTokens(first=0) if event.session not in ended:
                    heard.insert(beginnings, event)  # it is waited for; what goes on is read
                    beginnings += 1
                case TurnTokens():
                    heard.append(event)
                case ModelLoading():
                    self._on_loading(event.what, event.fraction)
                case EngineReady():
                    self._resolve_ready(event)
                case ModelLoadFailed():
                    self._resolve_ready(ModelError(event.message))
                case Pong():
                    self.load, self.placed_sessions = event.load, 0
                case TurnEnded():
                    heard.append(event)
                    ended.add(event.session)
                case _:
                    heard.append(event)
                    beginnings = len(heard)  # what is said behind it is told behind it
        if not waiting:
            self._deliver_slice()

    def _deliver_slice(self) -> None:
        heard = self._undelivered
        events = [heard.popleft() for _ in range(min(EVENTS_PER_SLICE, len(heard)))]
        try:
            if events:
                self._observer.on_events(self, events)
        finally:
            if heard:
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
        self._resolve_ready(link.handshake_error or ModelError("it hung up before it was ready"))
        if not self.is_connected:
            return
        if not self._is_closed:
            log.warning("engine %s: it is gone; its work waits, or goes elsewhere", self.name)
        self.is_connected, self.disconnected_since_s = False, time.monotonic()
        self._disconnected.set()
        self._observer.on_disconnected(self)


async def open_socket(host: str, port: int) -> socket.socket:
    """A connected socket to an engine elsewhere."""
    here = asyncio.get_running_loop()
    error: OSError = OSError(f"{host}: no address")
    infos = await here.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in infos:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await here.sock_connect(sock, address)
        except OSError as failed:
            sock.close()
            error = failed if failed.errno else OSError(f"{host}:{port} does not answer")
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise error

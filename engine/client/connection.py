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
from continuo.engine.wire.handshake import FrontGreeting
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    AnyCommand,
    AnyEvent,
    Load,
    LoadFailed,
    Loading,
    Ping,
    Pong,
    Ready,
    Tokens,
    TurnEnded,
)

log = logging.getLogger(__name__)

PING_S = 1.0
SILENT_S = 3.0
"""An engine that has said nothing for so long does not answer."""
AWAY_S = 15.0
"""An engine that is not there, and of which nothing was heard for so long, may be away for long."""
STEP_S_MAX = 30.0
"""A device that has been at one step for so long hangs: its engine is as good as silent since that
step began, whatever it says. The first step of a kind may compile for many seconds."""
HUNG_S = 60.0
"""The link to one that has said nothing for so long is cut; a child is killed and started again."""
RESTART_WAITS_S = (0.0, 0.5, 2.0, 5.0, 10.0)
"""Before each attempt to start a child again; after the last one it is gone for good."""
REDIAL_S_MAX = 2.0
READY_S = 10.0
"""From being connected to an engine elsewhere, which is loaded, until it says so."""
SLICE = 16
"""Events passed on at a time: then what was said of them is written, and others have their turn."""
DIAL_S = 3.0
"""To reach one address."""

Launch = Callable[[], Awaitable[socket.socket]]
OnLoading = Callable[[str, float], None]
Waits = Callable[[], Iterator[float]]


def restarts() -> Iterator[float]:
    """Of a child: it may be broken for good."""
    return iter(RESTART_WAITS_S)


def redials() -> Iterator[float]:
    """Of an engine elsewhere: it may come back at any time."""
    yield 0.0
    for attempt in itertools.count():
        yield min(0.1 * 2**attempt, REDIAL_S_MAX) * random.uniform(0.5, 1.0)


class Security(msgspec.Struct, frozen=True):
    """How a front and an engine elsewhere trust each other."""

    secret: bytes = b""
    """Empty: none, which is enough on one machine."""
    tls: ssl.SSLContext | None = None
    hostname: str | None = None
    """Whose certificate it must be, where `tls` checks that."""


class Listener(Protocol):
    """Told what a peer does."""

    @property
    def name(self) -> str:
        """Of the front."""
        ...

    def on_events(self, peer: "Peer", events: list[AnyEvent]) -> None: ...
    def on_ready(self, ready: Ready) -> None:
        """Raises LinkRefused for an engine that does not fit the others."""
        ...

    def on_up(self, peer: "Peer") -> None: ...
    def on_down(self, peer: "Peer") -> None: ...
    def on_gone(self, peer: "Peer") -> None: ...


class Peer:
    """`run` keeps it up. `life` counts the links that were made: what was sent on an earlier one
    may not have arrived."""

    def __init__(
        self,
        name: str,
        launch: Launch,
        listener: Listener,
        *,
        waits: Waits = restarts,
        security: Security | None = None,
        on_loading: OnLoading = lambda what, fraction: None,
    ) -> None:
        """`launch` returns a connected socket to the engine. `security`: it is elsewhere, and both
        ends prove who they are."""
        self.name = name
        self.up = False
        self.life = 0
        self.ready: Ready | None = None
        self.load = Load()
        self.placed = 0
        """Sessions placed here since it last told its load."""
        self.down_s = time.monotonic()
        """Since when it is not up."""
        self._launch = launch
        self._listener = listener
        self._waits = waits
        self._security = security
        self._on_loading = on_loading
        self._heard_s = 0.0
        self._heard: deque[AnyEvent] = deque()
        """Not passed on yet."""
        self._link: Link[AnyCommand, AnyEvent] | None = None
        self._becoming: asyncio.Future[Ready] | None = None
        self._down = asyncio.Event()
        self._stopped = False

    @property
    def silent_s(self) -> float:
        """Since it has last said anything; or done anything, if its device hangs."""
        hangs_s = self.load.step_s if self.load.step_s > STEP_S_MAX else 0.0
        return max(time.monotonic() - self._heard_s, hangs_s)

    @property
    def answers(self) -> bool:
        return self.up and self.silent_s < SILENT_S

    @property
    def expected(self) -> bool:
        """Whether it answers, or may soon: one that is not there may be starting again."""
        return self.silent_s < (SILENT_S if self.up else AWAY_S)

    def send(self, commands: Sequence[AnyCommand]) -> None:
        assert self._link is not None
        self._link.send_all(commands)

    async def run(self) -> None:
        """Brings it up, and up again, until it is gone for good or `close` is called."""
        waits = self._waits()
        while not self._stopped:
            if self.up:
                await self._down.wait()
                waits = self._waits()
            elif (wait_s := next(waits, None)) is None:
                self._listener.on_gone(self)
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
        self._becoming = here.create_future()
        security = self._security
        greeting = FrontGreeting(security.secret) if security else None
        tls = security.tls if security else None
        decoder = msgspec.msgpack.Decoder(list[AnyEvent])
        link: Link[AnyCommand, AnyEvent] = Link(
            decoder, lambda events: self._hear(link, events), lambda: self._lose(link), greeting
        )
        self._link = link
        sock = await self._launch()
        hostname = security.hostname if security and tls else None
        await here.create_connection(lambda: link, sock=sock, ssl=tls, server_hostname=hostname)
        try:
            async with asyncio.timeout(READY_S if security else None):
                ready = await self._becoming
            self._listener.on_ready(ready)
        except (LinkRefused, TimeoutError):
            link.abort()
            raise
        link.send(Ping(0, self._listener.name))
        self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.ready = ready
        self.life += 1
        self.up = True
        self._down.clear()
        self._listener.on_up(self)

    def ping(self, *, late: bool) -> None:
        """Every PING_S. `late`: we were asleep ourselves, and cannot say that it was silent."""
        if not self.up:
            return
        if late:
            self._heard_s = time.monotonic()
            self.load = msgspec.structs.replace(self.load, step_s=0.0)
        self.send([Ping(0, self._listener.name)])
        if self.silent_s > HUNG_S:
            self.hang_up(f"it has said or done nothing for {HUNG_S:.0f} s")

    def hang_up(self, why: str) -> None:
        """Nothing more is heard of this life of it."""
        log.warning("engine %s: the link is cut: %s", self.name, why)
        if self._link is not None:
            self._link.abort()
            self._lose(self._link)

    def close(self) -> None:
        """For good; what was sent arrives."""
        self._stopped = True
        if self._link is not None:
            self._link.close()

    # ---- from the link ----------------------------------------------------------------------

    def _hear(self, link: Link[AnyCommand, AnyEvent], events: list[AnyEvent]) -> None:
        if link is not self._link:
            return
        self._heard_s = time.monotonic()
        heard, waiting = self._heard, bool(self._heard)
        beginnings, ended = len(heard), set[str]()
        for event in events:
            match event:
                case Tokens(first=0) if event.session not in ended:
                    heard.insert(beginnings, event)  # it is waited for; what goes on is read
                    beginnings += 1
                case Tokens():
                    heard.append(event)
                case Loading():
                    self._on_loading(event.what, event.fraction)
                case Ready():
                    self._become(event)
                case LoadFailed():
                    self._become(ModelError(event.message))
                case Pong():
                    self.load, self.placed = event.load, 0
                case TurnEnded():
                    heard.append(event)
                    ended.add(event.session)
                case _:
                    heard.append(event)
                    beginnings = len(heard)  # what is said behind it is told behind it
        if not waiting:
            self._pass_on()

    def _pass_on(self) -> None:
        heard = self._heard
        events = [heard.popleft() for _ in range(min(SLICE, len(heard)))]
        try:
            if events:
                self._listener.on_events(self, events)
        finally:
            if heard:
                asyncio.get_running_loop().call_soon(self._pass_on)

    def _become(self, ready: Ready | EngineError) -> None:
        if self._becoming is None or self._becoming.done():
            return
        if isinstance(ready, Ready):
            self._becoming.set_result(ready)
        else:
            self._becoming.set_exception(ready)

    def _lose(self, link: Link[AnyCommand, AnyEvent]) -> None:
        if link is not self._link:
            return
        self._link = None
        while self._heard:
            self._pass_on()
        self._become(link.refused or ModelError("it hung up before it was ready"))
        if not self.up:
            return
        if not self._stopped:
            log.warning("engine %s: it is gone; its work waits, or goes elsewhere", self.name)
        self.up, self.down_s = False, time.monotonic()
        self._down.set()
        self._listener.on_down(self)


async def dial(host: str, port: int) -> socket.socket:
    """A connected socket to an engine elsewhere."""
    here = asyncio.get_running_loop()
    error: OSError = OSError(f"{host}: no address")
    infos = await here.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in infos:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(DIAL_S):
                await here.sock_connect(sock, address)
        except OSError as failed:
            sock.close()
            error = failed if failed.errno else OSError(f"{host}:{port} does not answer")
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise error

"""Simulated network: ordered connections between processes, with a random delay for each message.

Links can be cut with or without notice to their ends. The event loop's connect and listen calls are
routed to this network, so that the product's own code connects and listens.
"""

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.virtual import CURRENT_PROCESS, SimulatedProcess, VirtualLoop

Action = Callable[[], None]
MESSAGE_INTERVAL_S_MIN = 1e-6
"""Minimum interval between two messages, because simultaneous timers have no order."""


class Endpoint:
    """Endpoint of a connection, with the callbacks `on_data` and `on_lost`.

    `on_lost` is called at most once, and not for a close by this end.
    """

    def __init__(self, link: "Link", process: SimulatedProcess) -> None:
        self.link = link
        self.process = process
        self.peer: Endpoint = self
        self.is_open = True
        self.on_data: Callable[[Any], None] = self._keep
        self._early: list[Any] = []
        """Data that was received before `attach`."""
        self.on_lost: Callable[[Any], None] = _ignore
        self._last_s = 0.0

    def attach(self, on_data: Callable[[Any], None], on_lost: Callable[[Any], None]) -> None:
        """Set the callbacks of an accepted connection, and call them for what has happened."""
        self.on_data, self.on_lost = on_data, on_lost
        for data in self._early:
            on_data(data)
        if not self.is_open:
            on_lost(None)

    def _keep(self, data: Any) -> None:
        self._early.append(data)

    def send(self, data: Any) -> None:
        if self.is_open:
            self.deliver(lambda: self.peer._receive(data))

    def close(self, reason: Any = None) -> None:
        """Close this end; the peer is notified after all data sent before."""
        if self.is_open:
            self.is_open = False
            self.deliver(lambda: self.peer.mark_closed(reason))

    def ping(self, on_pong: Action) -> None:
        """Call `on_pong` at this end when the reply arrives, if the peer is still open."""
        if self.is_open:
            self.deliver(lambda: self.peer._pong(on_pong))

    def _pong(self, on_pong: Action) -> None:
        if self.is_open:
            self.deliver(on_pong)

    def mark_closed(self, reason: Any = None) -> None:
        """Close this end without notice to the peer."""
        if self.is_open:
            self.is_open = False
            self.on_lost(reason)

    def _receive(self, data: Any) -> None:
        if self.is_open:
            self.on_data(data)

    def deliver(self, action: Action) -> None:
        """Run `action` at the peer after the delay of a message, in order."""
        network = self.link.network
        self._last_s = max(
            self._last_s + MESSAGE_INTERVAL_S_MIN, network.loop.now + network.delay_s()
        )
        peer = self.peer.process
        network.loop.call_at(self._last_s, self._arrive, action, context=peer.context)

    def _arrive(self, action: Action) -> None:
        if not self.link.is_cut:
            action()


class Link:
    def __init__(self, network: "Network", one: SimulatedProcess, other: SimulatedProcess) -> None:
        self.network = network
        self.is_cut = False
        """Whether messages are lost, those in flight included."""
        self.endpoints = Endpoint(self, one), Endpoint(self, other)
        for end, peer in zip(self.endpoints, reversed(self.endpoints), strict=True):
            end.peer = peer

    @property
    def is_alive(self) -> bool:
        return not self.is_cut and any(end.is_open for end in self.endpoints)

    def sever(self, *notices_s: float | None) -> None:
        """Cut the link. Each end is notified after the given time; None: never."""
        self.is_cut = True
        loop = self.network.loop
        for end, after_s in zip(self.endpoints, notices_s, strict=True):
            if after_s is not None:
                loop.call_later(after_s, end.mark_closed, context=end.process.context)


class Network:
    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self.loop = loop
        self.links: list[Link] = []
        self.servers: dict[str, Listener] = {}
        self.unreachable: set[str] = set()
        self._rng = rng

    def delay_s(self) -> float:
        spike = self._rng.random() < 0.05
        return self._rng.uniform(0.01, 0.15) if spike else self._rng.uniform(0.0002, 0.003)

    def link(self, one: SimulatedProcess, other: SimulatedProcess) -> Link:
        self.links = [link for link in self.links if link.is_alive]
        link = Link(self, one, other)
        self.links.append(link)
        return link

    def links_of(self, process: SimulatedProcess) -> list[Link]:
        return [
            link
            for link in self.links
            if link.is_alive and any(end.process is process for end in link.endpoints)
        ]


class NetworkLoop(VirtualLoop):
    """Event loop whose host names are the names of processes."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self._connected_servers: dict[int, Listener] = {}

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await asyncio.sleep(self.network.delay_s())
        server = self.network.servers.get(address[0])
        if address[0] in self.network.unreachable:
            await asyncio.sleep(3600)
        if server is None or server.process.is_dead:
            raise ConnectionRefusedError(111, "connection refused")
        self._connected_servers[sock.fileno()] = server

    async def create_connection(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        server = self._connected_servers.pop(options["sock"].fileno())
        options["sock"].close()
        process = CURRENT_PROCESS.get()
        assert process is not None, "no process in this context"
        link = self.network.link(process, server.process)
        local, remote = link.endpoints
        local.deliver(lambda: server.accepted.put_nowait(remote))
        return _connect(local, protocol_factory())

    async def sock_accept(self, sock: Any) -> Any:
        sock.close()
        process = CURRENT_PROCESS.get()
        assert process is not None, "no process in this context"
        server = self.network.servers.get(process.name)
        if server is None or server.process is not process:
            self.network.servers[process.name] = server = Listener(process)
        return await server.accepted.get(), ("127.0.0.1", 0)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        return _connect(sock, protocol_factory())


class Listener:
    """The listening socket of a process, and the connections that wait to be accepted."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self.accepted: asyncio.Queue[Endpoint] = asyncio.Queue()


def _connect(end: Endpoint, protocol: Any) -> tuple["SimulatedTransport", Any]:
    """Connect a protocol to its end of a connection."""
    transport = SimulatedTransport(end, protocol)
    protocol.connection_made(transport)
    end.attach(protocol.data_received, lambda reason: protocol.connection_lost(None))
    return transport, protocol


class SimulatedTransport(asyncio.Transport):
    """Transport of a protocol over a simulated connection."""

    def __init__(self, end: Endpoint, protocol: Any) -> None:
        super().__init__({"ssl_object": self})  # prevents writes to the raw socket
        self._end = end
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self._end.send(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        if self._end.is_open:
            self._end.close()
            self._end.link.network.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self._end.is_open


def _ignore(data: Any) -> None:
    pass

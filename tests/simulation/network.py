"""Simulated network: ordered connections between processes, with a random delay for each message.

Links can be cut with or without notice to their ends. The event loop's connect and listen calls are
routed to this network, so that the product's own code connects and listens.
"""

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.virtual import HERE, Process, VirtualLoop

Act = Callable[[], None]
TICK_S = 1e-6
"""Minimum interval between two messages, because simultaneous timers have no order."""


class End:
    """Endpoint of a connection, with the callbacks `on_data` and `on_lost`.

    `on_lost` is called at most once, and not for a close by this end.
    """

    def __init__(self, link: "Link", process: Process) -> None:
        self.link = link
        self.process = process
        self.peer: End = self
        self.open = True
        self.on_data: Callable[[Any], None] = _ignore
        self.on_lost: Callable[[Any], None] = _ignore
        self._last_s = 0.0

    def send(self, data: Any) -> None:
        if self.open:
            self.post(lambda: self.peer._receive(data))

    def close(self, reason: Any = None) -> None:
        """Close this end; the peer is notified after all data sent before."""
        if self.open:
            self.open = False
            self.post(lambda: self.peer.end(reason))

    def ping(self, on_pong: Act) -> None:
        """Call `on_pong` at this end when the reply arrives, if the peer is still open."""
        if self.open:
            self.post(lambda: self.peer._pong(on_pong))

    def _pong(self, on_pong: Act) -> None:
        if self.open:
            self.post(on_pong)

    def end(self, reason: Any = None) -> None:
        """Close this end without notice to the peer."""
        if self.open:
            self.open = False
            self.on_lost(reason)

    def _receive(self, data: Any) -> None:
        if self.open:
            self.on_data(data)

    def post(self, action: Act) -> None:
        """Run `action` at the peer after the delay of a message, in order."""
        network = self.link.network
        self._last_s = max(self._last_s + TICK_S, network.loop.now + network.delay_s())
        peer = self.peer.process
        network.loop.call_at(self._last_s, self._arrive, action, context=peer.context)

    def _arrive(self, action: Act) -> None:
        if not self.link.cut:
            action()


class Link:
    def __init__(self, network: "Network", one: Process, other: Process) -> None:
        self.network = network
        self.cut = False
        """Whether messages are lost, those in flight included."""
        self.ends = End(self, one), End(self, other)
        for end, peer in zip(self.ends, reversed(self.ends), strict=True):
            end.peer = peer

    @property
    def there(self) -> bool:
        return not self.cut and any(end.open for end in self.ends)

    def sever(self, *notices_s: float | None) -> None:
        """Cut the link. Each end is notified after the given time; None: never."""
        self.cut = True
        loop = self.network.loop
        for end, after_s in zip(self.ends, notices_s, strict=True):
            if after_s is not None:
                loop.call_later(after_s, end.end, context=end.process.context)


class Network:
    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self.loop = loop
        self.links: list[Link] = []
        self.servers: dict[str, Server] = {}
        self.unreachable: set[str] = set()
        self._rng = rng

    def delay_s(self) -> float:
        spike = self._rng.random() < 0.05
        return self._rng.uniform(0.01, 0.15) if spike else self._rng.uniform(0.0002, 0.003)

    def link(self, one: Process, other: Process) -> Link:
        self.links = [link for link in self.links if link.there]
        link = Link(self, one, other)
        self.links.append(link)
        return link

    def of(self, process: Process) -> list[Link]:
        return [
            link
            for link in self.links
            if link.there and any(end.process is process for end in link.ends)
        ]


class NetworkLoop(VirtualLoop):
    """Event loop whose host names are the names of processes."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self._connected_servers: dict[int, Server] = {}

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await asyncio.sleep(self.network.delay_s())
        server = self.network.servers.get(address[0])
        if address[0] in self.network.unreachable:
            await asyncio.sleep(3600)
        if server is None or server.process.dead:
            raise ConnectionRefusedError(111, "connection refused")
        self._connected_servers[sock.fileno()] = server

    async def create_connection(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        server = self._connected_servers.pop(options["sock"].fileno())
        options["sock"].close()
        process = HERE.get()
        assert process is not None, "no process in this context"
        link = self.network.link(process, server.process)
        local, remote = link.ends
        protocol = protocol_factory()
        transport = Transport(local, protocol)
        local.post(lambda: server.accept(remote))
        protocol.connection_made(transport)
        return transport, protocol

    async def create_server(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        options["sock"].close()
        process = HERE.get()
        assert process is not None, "no process in this context"
        self.network.servers[process.name] = server = Server(protocol_factory, process)
        return server


class Server:
    def __init__(self, factory: Callable[[], Any], process: Process) -> None:
        self._factory = factory
        self.process = process

    def is_serving(self) -> bool:
        return True

    def accept(self, end: End) -> None:
        protocol = self._factory()
        protocol.connection_made(Transport(end, protocol))


class Transport(asyncio.Transport):
    """Transport of a protocol over a simulated connection."""

    def __init__(self, end: End, protocol: Any) -> None:
        super().__init__({"ssl_object": self})  # prevents writes to the raw socket
        self._end = end
        self._protocol = protocol
        end.on_data = protocol.data_received
        end.on_lost = lambda reason: protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        self._end.send(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        if self._end.open:
            self._end.close()
            self._end.link.network.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self._end.open


def _ignore(data: Any) -> None:
    pass

"""A network without sockets: connections between processes, in order, each message after a delay of
its own; they can be cut, with or without anybody hearing of it. The loop's own calls lead here, so
that what dials and listens is the product's."""

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.virtual import HERE, Process, VirtualLoop

Act = Callable[[], None]
TICK_S = 1e-6
"""Between two messages at least: timers of one moment have no order."""


class End:
    """One end of a connection. Set `on_data` and `on_lost`; the latter is called once at most, and
    not for what this end does itself."""

    def __init__(self, link: "Link", process: Process) -> None:
        self.link = link
        self.process = process
        self.peer: End = self
        self.open = True
        self.on_data: Callable[[Any], None] = _nothing
        self.on_lost: Callable[[Any], None] = _nothing
        self._last_s = 0.0

    def send(self, what: Any) -> None:
        if self.open:
            self.post(lambda: self.peer._hear(what))

    def close(self, why: Any = None) -> None:
        """The other end hears of it behind all that was sent."""
        if self.open:
            self.open = False
            self.post(lambda: self.peer.end(why))

    def ping(self, answered: Act) -> None:
        """`answered` is called here if the other end is still there, when its answer comes."""
        if self.open:
            self.post(lambda: self.peer._pong(answered))

    def _pong(self, answered: Act) -> None:
        if self.open:
            self.post(answered)

    def end(self, why: Any = None) -> None:
        if self.open:
            self.open = False
            self.on_lost(why)

    def _hear(self, what: Any) -> None:
        if self.open:
            self.on_data(what)

    def post(self, act: Act) -> None:
        """Done at the other end, in order."""
        network = self.link.network
        self._last_s = max(self._last_s + TICK_S, network.loop.now + network.delay_s())
        peer = self.peer.process
        network.loop.call_at(self._last_s, self._arrive, act, context=peer.context)

    def _arrive(self, act: Act) -> None:
        if not self.link.cut:
            act()


class Link:
    def __init__(self, network: "Network", one: Process, other: Process) -> None:
        self.network = network
        self.cut = False
        """Nothing arrives any more."""
        self.ends = End(self, one), End(self, other)
        for end, peer in zip(self.ends, reversed(self.ends), strict=True):
            end.peer = peer

    @property
    def there(self) -> bool:
        return not self.cut and any(end.open for end in self.ends)

    def sever(self, *notices_s: float | None) -> None:
        """What is on its way is lost. Each end hears of it after so long; None: never."""
        self.cut = True
        loop = self.network.loop
        for end, after_s in zip(self.ends, notices_s, strict=True):
            if after_s is not None:
                loop.call_later(after_s, end.end, context=end.process.context)


class Network:
    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.loop = loop
        self.links: list[Link] = []
        self.servers: dict[str, Server] = {}
        self.unreachable: set[str] = set()
        self._chance = chance

    def delay_s(self) -> float:
        spike = self._chance.random() < 0.05
        return self._chance.uniform(0.01, 0.15) if spike else self._chance.uniform(0.0002, 0.003)

    def link(self, one: Process, other: Process) -> Link:
        self.links = [link for link in self.links if link.there]
        made = Link(self, one, other)
        self.links.append(made)
        return made

    def of(self, process: Process) -> list[Link]:
        return [
            link
            for link in self.links
            if link.there and any(end.process is process for end in link.ends)
        ]


class NetworkLoop(VirtualLoop):
    """Hosts are processes, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self._dialled: dict[int, Server] = {}

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await asyncio.sleep(self.network.delay_s())
        server = self.network.servers.get(address[0])
        if address[0] in self.network.unreachable:
            await asyncio.sleep(3600)
        if server is None or server.process.dead:
            raise ConnectionRefusedError(111, "connection refused")
        self._dialled[sock.fileno()] = server

    async def create_connection(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        server = self._dialled.pop(options["sock"].fileno())
        options["sock"].close()
        here = HERE.get()
        assert here is not None, "somebody dials"
        link = self.network.link(here, server.process)
        ours, theirs = link.ends
        protocol = protocol_factory()
        transport = Transport(ours, protocol)
        ours.post(lambda: server.accept(theirs))
        protocol.connection_made(transport)
        return transport, protocol

    async def create_server(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        options["sock"].close()
        here = HERE.get()
        assert here is not None, "somebody listens"
        self.network.servers[here.name] = made = Server(protocol_factory, here)
        return made


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
    """What a protocol is given."""

    def __init__(self, end: End, protocol: Any) -> None:
        super().__init__({"ssl_object": self})  # so that nobody writes past it
        self._end = end
        self._protocol = protocol
        end.on_data = protocol.data_received
        end.on_lost = lambda why: protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        self._end.send(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written is sent at once."""

    def close(self) -> None:
        if self._end.open:
            self._end.close()
            self._end.link.network.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self._end.open


def _nothing(what: Any) -> None:
    pass

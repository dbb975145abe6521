"""Proxy: a TCP proxy with faults, between a client and one port of this machine.

    client ──up──▶ proxy ──up──▶ port
    client ◀─down─ proxy ◀─down─ port

Bytes are forwarded as they arrive unless a fault is set. Faults can be set and cleared at any time;
they apply to open and to new connections.
"""

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import AsyncIterator
from typing import Literal

Direction = Literal["up", "down"]
CHUNK_BYTES = 65_536
SLOW_READ_S = 0.05
"""Interval at which a limited number of bytes a second is read."""


class Proxy:
    def __init__(self, port: int, receive_buffer_bytes: int | None = None) -> None:
        """`receive_buffer_bytes`: of the kernel, for what the port sends; None: as it chooses."""
        self._receive_buffer_bytes = receive_buffer_bytes
        self.target_port = port
        self.port = 0
        self.delay_s = 0.0
        """Delay of each chunk in both directions."""
        self.down_bytes_per_s = math.inf
        """Rate at which what the port sends is read and forwarded."""
        self.discarded_directions: set[Direction] = set()
        """Directions whose bytes and FINs are discarded; both: like a pulled cable."""
        self.refuses_connections = False
        """Reset every new connection."""
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: dict[Direction, tuple[float, bool]] = {}

    def url(self, path: str = "/v1/realtime") -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def stall(self) -> None:
        """Hold back all bytes without loss until `resume` is called."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def clear_faults(self) -> None:
        """Clear all faults: bytes are forwarded as they arrive."""
        self.delay_s = 0.0
        self.down_bytes_per_s = math.inf
        self.discarded_directions = set()
        self.refuses_connections = False
        self._left.clear()
        self.resume()

    def reset_connections(self) -> None:
        """Close all connections with a reset (RST) on both sides."""
        for writer in list(self._writers):
            _reset(writer)

    def close_connections(self) -> None:
        """Close all connections in order (FIN): bytes already forwarded arrive."""
        for writer in list(self._writers):
            writer.close()

    def disconnect_after(self, direction: Direction, count: int, *, fin: bool = False) -> None:
        """Reset all connections after `count` more bytes; `fin`: close them in order."""
        self._left[direction] = (count, fin)

    @property
    def connection_count(self) -> int:
        return len(self._writers) // 2

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.resume()
            self.reset_connections()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses_connections:
            _reset(writer)
            return
        try:
            target = await self._connect()
        except OSError:
            _reset(writer)
            return
        pair = {writer, target[1]}
        self._writers |= pair
        pumps = (self._forward("up", reader, target[1]), self._forward("down", target[0], writer))
        tasks = [asyncio.create_task(pump) for pump in pumps]
        self._tasks.update(tasks)
        await asyncio.wait(tasks)
        self._tasks.difference_update(tasks)
        self._writers -= pair
        for each in pair:
            each.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if self._receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.target_port))
            return await asyncio.open_connection(
                sock=sock, limit=self._receive_buffer_bytes or CHUNK_BYTES
            )
        except OSError:
            sock.close()
            raise

    def _read_bytes(self, direction: Direction) -> int:
        """Return how much to read at once."""
        if direction == "up" or self.down_bytes_per_s == math.inf:
            return CHUNK_BYTES
        return max(1, int(self.down_bytes_per_s * SLOW_READ_S))

    async def _forward(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(self._read_bytes(direction)):
                if direction == "down":
                    await asyncio.sleep(len(chunk) / self.down_bytes_per_s)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                if direction in self.discarded_directions:
                    continue
                left, fin = self._left.pop(direction, (math.inf, False))
                if left <= len(chunk):
                    writer.write(chunk[: int(left)])
                    await writer.drain()
                    self.close_connections() if fin else self.reset_connections()
                    return
                self._left[direction] = (left - len(chunk), fin)
                writer.write(chunk)
                await writer.drain()
            await self._open.wait()
            is_open = not writer.is_closing() and writer.can_write_eof()
            if direction not in self.discarded_directions and is_open:
                writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

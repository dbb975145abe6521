"""Proxy: a TCP connection with faults, between a client and one port of this machine.

    client ──up──▶ proxy ──up──▶ port
    client ◀─down─ proxy ◀─down─ port

Bytes are passed on as they come unless a fault says otherwise. Faults may be set and taken back at
any time, and hold for connections that are there as well as for those that come.
"""

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import AsyncIterator
from typing import Literal

Way = Literal["up", "down"]
CHUNK = 65_536


class Proxy:
    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.delay_s = 0.0
        """Of each chunk, both ways."""
        self.lost: set[Way] = set()
        """Ways on which bytes vanish, and ends too: both are a peer whose cable was pulled."""
        self.refusing = False
        """Who comes is reset."""
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: dict[Way, tuple[float, bool]] = {}

    def url(self, path: str = "/v1/realtime") -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def stall(self) -> None:
        """Nothing moves, until `go_on`; nothing is lost."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def mend(self) -> None:
        """From now on bytes are passed on as they come."""
        self.delay_s = 0.0
        self.lost = set()
        self.refusing = False
        self._left.clear()
        self.go_on()

    def cut(self) -> None:
        """All connections, with a reset on both sides."""
        for writer in list(self._writers):
            _reset(writer)

    def end(self) -> None:
        """All connections, in order: what was passed on arrives."""
        for writer in list(self._writers):
            writer.close()

    def cut_after(self, way: Way, count: int, *, fin: bool = False) -> None:
        """When so many more bytes have gone that way, perhaps within a frame. `fin`: with an end
        instead of a reset."""
        self._left[way] = (count, fin)

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.go_on()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            _reset(writer)
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(writer)
            return
        pair = {writer, there[1]}
        self._writers |= pair
        ways = (self._pass("up", reader, there[1]), self._pass("down", there[0], writer))
        tasks = [asyncio.create_task(way) for way in ways]
        self._tasks.update(tasks)
        await asyncio.wait(tasks)
        self._tasks.difference_update(tasks)
        self._writers -= pair
        for each in pair:
            each.close()

    async def _pass(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                if way in self.lost:
                    continue
                left, fin = self._left.pop(way, (math.inf, False))
                if left <= len(chunk):
                    writer.write(chunk[: int(left)])
                    await writer.drain()
                    self.end() if fin else self.cut()
                    return
                self._left[way] = (left - len(chunk), fin)
                writer.write(chunk)
                await writer.drain()
            await self._open.wait()
            if way not in self.lost and writer.can_write_eof():
                writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

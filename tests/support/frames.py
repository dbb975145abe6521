"""WebSocket by hand: frames as a hostile peer makes them, over a socket of its own."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from typing import Any, NamedTuple

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Frame(NamedTuple):
    opcode: int
    payload: bytes


def frame(
    payload: bytes | str = b"",
    opcode: int = TEXT,
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int | None = None,
    wide: int | None = None,
) -> bytes:
    """As RFC 6455 has it, or not: `length` is claimed whatever the payload is; `wide` is the size
    of its field in bytes, 2 or 8, where it need not be."""
    data = payload.encode() if isinstance(payload, str) else payload
    claimed = len(data) if length is None else length
    bit = 0x80 if masked else 0
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if wide is None:
        wide = 0 if claimed < 126 else 2 if claimed < 1 << 16 else 8
    match wide:
        case 0:
            head += bytes([bit | claimed])
        case 2:
            head += bytes([bit | 126]) + struct.pack("!H", claimed)
        case _:
            head += bytes([bit | 127]) + struct.pack("!Q", claimed)
    if not masked:
        return head + data
    mask = os.urandom(4)
    pad = (mask * (len(data) // 4 + 1))[: len(data)]
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")
    return head + mask + mixed.to_bytes(len(data), "big")


UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def upgrade(path: str = "/v1/realtime", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (UPGRADE.format(path=path) + more + "\r\n").encode()


class Peer:
    """One TCP connection, past the upgrade."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = ""

    @classmethod
    async def connect(cls, port: int, **headers: str) -> "Peer":
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.writer.write(upgrade(**headers))
        peer.head = (await asyncio.wait_for(peer.reader.readuntil(b"\r\n\r\n"), 20)).decode()
        assert peer.head.startswith("HTTP/1.1 101 "), peer.head
        return peer

    async def send(self, *frames: bytes) -> None:
        """Whether or not anybody reads them still."""
        for each in frames:
            self.writer.write(each)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()

    async def say(self, **event: Any) -> None:
        await self.send(frame(json.dumps(event)))

    async def recv(self) -> Frame | None:
        """None: the end, in order. Raises ConnectionError where it is a reset."""
        try:
            first, second = await asyncio.wait_for(self.reader.readexactly(2), 60)
            size = second & 0x7F
            if size >= 126:
                wide = 2 if size == 126 else 8
                size = int.from_bytes(await self.reader.readexactly(wide), "big")
            return Frame(first & 0x0F, await self.reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return None

    async def event(self) -> dict[str, Any]:
        """The next text frame; pings before it are answered."""
        while (got := await self.recv()) is not None:
            if got.opcode == PING:
                await self.send(frame(got.payload, PONG))
            if got.opcode == TEXT:
                return json.loads(got.payload)
            assert got.opcode != CLOSE, f"closed: {got.payload!r}"
        raise AssertionError("the connection ended")

    async def until(self, type: str) -> dict[str, Any]:
        while (event := await self.event())["type"] != type:
            pass
        return event

    async def close_code(self) -> int:
        """What it is closed with, whatever it says before; 1005: no code; 1006: without a word."""
        while (got := await self.recv()) is not None:
            if got.opcode == CLOSE:
                return int.from_bytes(got.payload[:2], "big") if got.payload else 1005
        return 1006

    def reset(self) -> None:
        """Not a FIN: an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

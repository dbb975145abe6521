"""WebSocket frames encoded by hand, valid or not, and a raw connection to send them."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from typing import Any, NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Frame(NamedTuple):
    opcode: int
    payload: bytes


def encode_frame(
    payload: bytes | str = b"",
    opcode: int = TEXT,
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int | None = None,
    wide: int | None = None,
) -> bytes:
    """Encode a frame of RFC 6455, or an invalid one.

    `length`: payload length to claim in the header, even if wrong; `wide`: size in bytes (2 or 8)
    of the extended length field, even if the length would fit into a shorter one.
    """
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


UPGRADE_TEMPLATE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def upgrade_request(path: str = "/v1/realtime", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (UPGRADE_TEMPLATE.format(path=path) + lines + "\r\n").encode()


class RawWebSocket:
    """WebSocket client that sends and receives raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.response_head = ""

    @classmethod
    async def connect(
        cls, port: int, receive_buffer_bytes: int | None = None, /, **headers: str
    ) -> "RawWebSocket":
        """`receive_buffer_bytes`: size of the socket's buffer, set before the connection: if a
        window shrinks, the kernel drops what is in flight, and may take many seconds to repeat it.
        None: the system's default."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        peer = cls(*await asyncio.open_connection(sock=sock))
        peer.writer.write(upgrade_request(**headers))
        peer.response_head = (
            await asyncio.wait_for(peer.reader.readuntil(b"\r\n\r\n"), 20)
        ).decode()
        assert peer.response_head.startswith("HTTP/1.1 101 "), peer.response_head
        return peer

    async def send(self, *frames: bytes) -> None:
        """Send frames, ignoring a closed connection."""
        for each in frames:
            if self.writer.is_closing():
                return
            self.writer.write(each)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()

    async def send_event(self, **event: Any) -> None:
        await self.send(encode_frame(json.dumps(event)))

    async def receive(self) -> Frame | None:
        """Receive a frame. Returns None at the end of the stream; raises ConnectionError on RST."""
        try:
            first, second = await asyncio.wait_for(self.reader.readexactly(2), 60)
            size = second & 0x7F
            if size >= 126:
                wide = 2 if size == 126 else 8
                size = int.from_bytes(await self.reader.readexactly(wide), "big")
            return Frame(first & 0x0F, await self.reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return None

    async def receive_event(self) -> dict[str, Any]:
        """Receive the next text frame as JSON, and answer pings before it.

        Raises AssertionError if the connection closes first.
        """
        while (received := await self.receive()) is not None:
            if received.opcode == PING:
                await self.send(encode_frame(received.payload, PONG))
            if received.opcode == TEXT:
                return json.loads(received.payload)
            assert received.opcode != CLOSE, f"closed: {received.payload!r}"
        raise AssertionError("the connection ended")

    async def wait_for(self, type: str) -> dict[str, Any]:
        while (event := await self.receive_event())["type"] != type:
            pass
        return event

    async def wait_close_code(self) -> int:
        """Receive until the connection closes. Returns the code of the close frame: 1005 if the
        frame has none, 1006 if the stream ends without a close frame."""
        while (received := await self.receive()) is not None:
            if received.opcode == CLOSE:
                return int.from_bytes(received.payload[:2], "big") if received.payload else 1005
        return 1006

    def reset(self) -> None:
        """Close the connection with an RST instead of a FIN, unless it has ended."""
        if (sock := self.writer.get_extra_info("socket")) is None:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

"""WebSocket clients that use little CPU time, because they share the machine with the server under
measurement.

Frames are parsed only as far as the figures require.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, cast

from continuo.bench import random_checkpoints
from continuo.bench.gateway_server import API_KEY
from continuo.bench.scripted_engine import FIRST_TICK_ID, lateness_s

OnFrame = Callable[[bytes, float], None]
"""Callback for each frame: (payload, time of arrival in seconds of the monotonic clock)."""

_DELTA = re.compile(rb'"delta":"([^"]*)"')
_TEXT, _PING, _PONG = 0x81, 0x89, 0x8A


class WebSocketClient(asyncio.Protocol):
    """A minimal WebSocket client of /v1/realtime. Its masking key is zero, so that masking costs
    nothing."""

    def __init__(self, on_frame: OnFrame, query: str = "") -> None:
        self.on_frame = on_frame
        self.connected = asyncio.get_running_loop().create_future()
        self.disconnected = asyncio.Event()
        self._query = query
        self._transport: asyncio.Transport
        self._buffer = b""
        self._upgraded = False

    @classmethod
    async def connect(cls, port: int, on_frame: OnFrame, query: str = "") -> "WebSocketClient":
        """Connect to a port of the loopback interface and wait for the first frame. Raises OSError.

        `query`: query parameters besides `model`, each with a leading `&`.
        """
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(on_frame, query), "127.0.0.1", port)
        await client.connected
        return client

    def send(self, **event: Any) -> None:
        self._send(_TEXT, json.dumps(event).encode())

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(
            b"GET /v1/realtime?model=bench" + self._query.encode() + b" HTTP/1.1\r\n"
            b"Host: x\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Authorization: Bearer " + API_KEY.encode() + b"\r\n\r\n"
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._buffer + data if self._buffer else data
        at = 0
        if not self._upgraded:
            at = data.find(b"\r\n\r\n") + 4
            self._upgraded = at > 3
            if not self._upgraded:
                self._buffer = data
                return
        while len(data) - at >= 2:
            size, begin = data[at + 1], at + 2
            if size >= 126:
                begin += 2 if size == 126 else 8
                size = int.from_bytes(data[at + 2 : begin], "big")
            if len(data) < begin + size:
                break
            payload = data[begin : begin + size]
            if data[at] == _TEXT:
                self._receive(payload, now)
            elif data[at] == _PING:
                self._send(_PONG, payload)
            at = begin + size
        self._buffer = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnected.set()
        if not self.connected.done():
            self.connected.set_exception(exc or ConnectionError("closed before the handshake"))

    def _receive(self, payload: bytes, now: float) -> None:
        if not self.connected.done():
            self.connected.set_result(None)
        self.on_frame(payload, now)

    def _send(self, kind: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes([kind, 0x80 | size])
        else:
            head = bytes([kind, 0xFE]) + size.to_bytes(2, "big")
        self._transport.write(head + bytes(4) + payload)


def token_lateness_s(delta: bytes, rate: float, now_s: float) -> list[float]:
    """Compute how late each token of a `response.output_text.delta` event is at `now_s`, in
    seconds, against a schedule of `rate` tokens a second."""
    found = _DELTA.search(delta)
    assert found is not None, delta
    ticks = [
        random_checkpoints.ID_OF_LETTER[letter] - FIRST_TICK_ID for letter in found[1].decode()
    ]
    return [lateness_s(tick, rate, now_s) for tick in ticks]


class LatenessRecorder:
    """Callback of a client that receives one long response: records the lateness of its tokens."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.lateness_s: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def __call__(self, payload: bytes, now: float) -> None:
        if payload.startswith(b'{"type":"response.output_text.delta"'):
            self.lateness_s += token_lateness_s(payload, self._rate, now)
        elif payload.startswith(b'{"type":"response.done"'):
            self.done.set_result(None)
        elif payload.startswith(b'{"type":"error"'):
            self.done.set_exception(RuntimeError(payload.decode()))


class RequestFailed(RuntimeError):
    """An error event came in place of an acknowledgement."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload.decode())
        self.code: str = json.loads(payload)["error"]["code"]


class EventWaiter:
    """Callback of a client that queues its events, and waits for the next one of a given type."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[tuple[bytes, float]] = asyncio.Queue()

    def __call__(self, payload: bytes, now: float) -> None:
        self._received.put_nowait((payload, now))

    async def wait_for(self, kind: str) -> tuple[bytes, float]:
        """Return the next event of type `kind`, and its time of arrival. Events before it are
        discarded. Raises RequestFailed if one of them is an error event."""
        prefix = b'{"type":"' + kind.encode() + b'"'
        while True:
            payload, at_s = await self._received.get()
            if payload.startswith(prefix):
                return payload, at_s
            if payload.startswith(b'{"type":"error"'):
                raise RequestFailed(payload)

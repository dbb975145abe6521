"""What uvicorn leaves open to peers that hold on, closed.

half a request                  aborted: its head after HEAD_S, its body after BODY_S
sends on after we hung up       read and thrown away for LINGER_S, at most LINGER_BYTES, so that the
                                close frame is not overtaken by a reset
reads nothing, and the session  aborted: what waits for it would hold the socket
has ended
"""

import asyncio
import math
import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from realtime.transport.socket import ASK, SEND_NOW

HEAD_S = 10.0
BODY_S = 60.0
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024
_MIDDLE, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")
"""Heads of frames, by how their size is written."""
CORKED_BYTES_MAX = 64 * 1024
"""More is written at once."""
BEAT_S = 0.25
"""Between pings."""
_ASKED = b"are you there?"


class GuardedHttp(HttpToolsProtocol):
    """Each request has a time to arrive in; the first begins with the connection."""

    _guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(HEAD_S)

    def on_message_begin(self) -> None:
        if self._guard is None:
            self._arm(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._arm(BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # which refers to us

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._guard = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A socket that is closed with bytes unread is reset, and the reset drops what the peer has not
    read yet: our close frame among it."""

    message_bytes_max: ClassVar[Mapping[str, int]] = {}
    """By path, where it is not what the configuration says."""
    corked: ClassVar[list["GuardedWebSocket"]] = []
    """Peers that something was said to in this turn of the event loop. It goes out at its end:
    together, which wakes a reader of many once. Each server has its own."""
    _corked: bytes = b""
    _lingering = False
    _lingered_bytes = 0
    _asked: "asyncio.Future[bool] | None" = None

    def handle_connect(self, event: Request) -> None:
        limit = self.message_bytes_max.get(event.path.partition("?")[0])
        if limit is not None:
            self.conn.max_message_size = limit
        super().handle_connect(event)
        if not self.close_sent:
            extensions = self.scope.setdefault("extensions", {})
            extensions[SEND_NOW] = {"write": self.send_now}
            extensions[ASK] = {"ask": self.ask}

    def send_now(self, frames: Sequence[bytes], binary: bool) -> bool:
        """As `send`, where that would not wait, nor raise."""
        if not (self.writable.is_set() and self.handshake_complete and self._open):
            return False
        if not self._corked:
            if not self.corked:
                self.loop.call_soon(self._uncork_all)
            self.corked.append(self)
        for frame in frames:
            self._corked += frame_head(len(frame), binary) + frame
        if len(self._corked) > CORKED_BYTES_MAX:
            self._uncork()
        return True

    def _uncork_all(self) -> None:
        peers = self.corked[:]
        self.corked.clear()
        for peer in peers:
            peer._uncork()

    def _uncork(self) -> None:
        frames, self._corked = self._corked, b""
        if frames and self._open:
            self.transport.write(frames)

    @property
    def _open(self) -> bool:
        return (
            self.conn.state is State.OPEN
            and not self.close_sent
            and not self.transport.is_closing()
        )

    async def send(self, message: ASGISendEvent) -> None:
        self._uncork()
        await super().send(message)

    def shutdown(self) -> None:
        self._uncork()
        super().shutdown()

    def ask(self) -> "asyncio.Future[bool]":
        """Sends a ping. True: it is answered. False: the connection has ended."""
        self._asked = self.loop.create_future()
        if self._open:
            self.conn.send_ping(_ASKED)
            self.transport.write(b"".join(self.conn.data_to_send()))
        else:
            self._answer(False)
        return self._asked

    def handle_pong(self, event: Frame) -> None:
        if event.data == _ASKED:
            self._answer(True)
        else:
            super().handle_pong(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer(False)
        super().connection_lost(exc)

    def _answer(self, answer: bool) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(answer)

    def schedule_ping(self) -> None:
        """At a beat common to all: thousands of pings, and of answers, wake us a few times a
        second."""
        due_s = self.loop.time() + max(0.0, (self.ping_interval or 0.0) - self.last_ping_rtt)
        beat_s = math.ceil(due_s / BEAT_S) * BEAT_S
        self.ping_timer = self.loop.call_at(beat_s, self.send_keepalive_ping)

    def data_received(self, data: bytes) -> None:
        if not self._lingering:
            super().data_received(data)
            return
        self._lingered_bytes += len(data)
        if self._lingered_bytes > LINGER_BYTES:
            self.transport.abort()

    def handle_parser_exception(self) -> None:
        """Over-long, not masked, no UTF-8: says why, ends its own side, reads on for a while."""
        assert self.conn.close_sent is not None, "what the parser refused is said"
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._lingering = self.close_sent = True
        # While this timer runs the end of the session does not close the socket.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.scope.get("extensions", {}).clear()  # which refer to us
        if not self.writable.is_set():
            self.transport.abort()


def frame_head(size: int, binary: bool) -> bytes:
    """Of a whole frame from a server, a text one or a binary one (RFC 6455, 5.2)."""
    first = 0x82 if binary else 0x81
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return _MIDDLE.pack(first, 126, size)
    return _LONG.pack(first, 127, size)

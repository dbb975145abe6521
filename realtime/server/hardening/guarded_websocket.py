"""WebSocket connections of uvicorn, with a bound on what each may keep open.

half a message                  closed after MESSAGE_TIMEOUT_S, or at a bound of fragments
unfinished messages over budget the largest is closed with 1013 (`incoming_budget`)
input after our close frame     read and discarded for LINGER_S, at most LINGER_BYTES_MAX
session ended, client does      aborted: unsent bytes would hold the socket
not read
"""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.server import replies
from continuo.realtime.server.hardening.guards import (
    LINGER_S,
    SLICE_BYTES,
    Lingerer,
    TurnwiseReader,
    encode_last_response,
    slices,
)
from continuo.realtime.server.hardening.incoming_budget import IncomingBudget, IncomingShare
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.transport.socket import PING_EXTENSION, SEND_NOW_EXTENSION

MESSAGE_TIMEOUT_S = 60.0
"""Time from the first byte of a message to its last, while the server reads. Over it close
1008."""
FRAGMENTS_MAX = 1024
"""Fragments of one message; with more, each must carry FRAGMENT_BYTES_MEAN. Over it close 1008."""
FRAGMENT_BYTES_MEAN = 64
"""A smaller fragment takes less memory than the object that holds it."""
UNCHARGED_BYTES = 4 * 1024
"""Bytes of a connection that are not charged, so that ordinary messages cost no bookkeeping."""
_MEDIUM_FRAME_HEAD, _LONG_FRAME_HEAD = struct.Struct("!BBH"), struct.Struct("!BBQ")
"""Heads of frames, by how their size is written."""
CORKED_BYTES_MAX = 64 * 1024
"""With more bytes corked, they are written at once."""
PING_BEAT_S = 0.25
"""Pings are sent at multiples of it."""
_PING_PAYLOAD = b"are you there?"
_INVALID_UPGRADE = (
    400,
    "invalid_upgrade",
    "The request is not a valid WebSocket upgrade.",
)


class GuardedWebSocket(Lingerer, TurnwiseReader, WebSocketsSansIOProtocol):
    """A WebSocket with a deadline for each message, and bounds on its fragments and on the bytes of
    all unfinished messages together."""

    message_bytes_max: ClassVar[Mapping[str, int]] = {}
    """Limits by path, where they differ from the configured one."""
    corked_sockets: ClassVar[list["GuardedWebSocket"]] = []
    """Connections with frames to write at the end of this round of the event loop: together, which
    wakes a reader of many once. Each server has its own list."""
    _corked_frames: bytes = b""
    incoming_budget: ClassVar[IncomingBudget]
    read_turns: ClassVar[ReadTurns]
    _share: IncomingShare | None = None
    """Set while more than UNCHARGED_BYTES wait for the rest of their message, or for the
    application."""
    _queued_message_bytes: "deque[int]"
    """Bytes of each whole message that is queued for the application."""
    _queued_bytes = 0
    """Their sum."""
    _received_bytes = 0
    """Bytes of the message that the application is handling: until it receives again."""
    _deadline: asyncio.TimerHandle | None = None
    """Set while a message is under way and the server reads."""
    _pong: bytes = b""
    """The pong to the last ping, kept while the peer does not read."""
    _is_lingering = False
    _ping_result: "asyncio.Future[bool] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._queued_message_bytes = deque()
        super().connection_made(transport)

    def handle_connect(self, event: Request) -> None:
        limit = self.message_bytes_max.get(event.path.partition("?")[0])
        if limit is not None:
            self.conn.max_message_size = limit
        super().handle_connect(event)
        if not self.close_sent:
            extensions = self.scope.setdefault("extensions", {})
            extensions[SEND_NOW_EXTENSION] = {"write": self.send_now}
            extensions[PING_EXTENSION] = {"ask": self.ping}

    def send_now(
        self,
        frames: Sequence[bytes],
        is_binary: bool,  # noqa: FBT001 - an ASGI extension is called by position
    ) -> bool:
        """Send frames if that needs no waiting and cannot raise. Returns False if it would."""
        if not (self.writable.is_set() and self.handshake_complete and self._is_open):
            return False
        if not self._corked_frames:
            if not self.corked_sockets:
                self.loop.call_soon(self._uncork_all)
            self.corked_sockets.append(self)
        for frame in frames:
            self._corked_frames += frame_head(len(frame), is_binary=is_binary) + frame
        if len(self._corked_frames) > CORKED_BYTES_MAX:
            self._uncork()
        return True

    def _uncork_all(self) -> None:
        peers = self.corked_sockets[:]
        self.corked_sockets.clear()
        for peer in peers:
            peer._uncork()  # noqa: SLF001 - its own class

    def _uncork(self) -> None:
        frames, self._corked_frames = self._corked_frames, b""
        if frames and self._is_open:
            self.transport.write(frames)

    @property
    def _is_open(self) -> bool:
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

    def ping(self) -> "asyncio.Future[bool]":
        """Send a ping. The future resolves to True at the pong, to False if the connection ends."""
        self._ping_result = self.loop.create_future()
        if self._is_open:
            self.conn.send_ping(_PING_PAYLOAD)
            self.transport.write(b"".join(self.conn.data_to_send()))
        else:
            self._resolve_ping(is_answered=False)
        return self._ping_result

    def handle_pong(self, event: Frame) -> None:
        if event.data == _PING_PAYLOAD:
            self._resolve_ping(is_answered=True)
        else:
            super().handle_pong(event)

    def handle_ping(self) -> None:
        """Send a pong; only to the last ping while the client does not read (RFC 6455, 5.5.3)."""
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        elif pongs:
            self._pong = pongs[-1]

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        if pong and not self.transport.is_closing():
            self.transport.write(pong)

    def connection_lost(self, exc: Exception | None) -> None:
        self._resolve_ping(is_answered=False)
        super().connection_lost(exc)
        self._release_charge()
        self._break_reference_cycles()

    def _break_reference_cycles(self) -> None:
        """Break the reference cycles between the connection, its parser and their exceptions, so
        that the bytes are freed at once."""
        self.conn.parser.close()
        self.conn.parser_exc = None
        self.conn.reader.buffer = bytearray()
        self.frames = []

    def _resolve_ping(self, *, is_answered: bool) -> None:
        if self._ping_result is not None and not self._ping_result.done():
            self._ping_result.set_result(is_answered)

    def schedule_ping(self) -> None:
        """Send pings at a beat common to all connections: thousands of pings, and of pongs, wake
        the process a few times a second."""
        due_s = self.loop.time() + max(0.0, (self.ping_interval or 0.0) - self.last_ping_rtt)
        beat_s = math.ceil(due_s / PING_BEAT_S) * PING_BEAT_S
        self.ping_timer = self.loop.call_at(beat_s, self.send_keepalive_ping)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._read_head(data)
            return
        if not self.handshake_complete:
            self.transport.abort()  # a client must wait for the response to its upgrade
            return
        for part in slices(data):
            self._read(part)
        if len(data) > SLICE_BYTES:
            self._wait(self.read_turns)

    def _read(self, part: bytes) -> None:
        if self._is_lingering:
            self._discard_input(part)
            return
        super().data_received(part)
        if len(self.frames) > FRAGMENTS_MAX and len(self.frames) > self._fragments_max:
            self._fail(
                CloseCode.POLICY_VIOLATION, f"a message of over {FRAGMENTS_MAX:,} small fragments"
            )
        self._update_charge()

    @property
    def _fragments_max(self) -> int:
        return FRAGMENTS_MAX + (self.conn.current_size or 0) // FRAGMENT_BYTES_MEAN

    def _read_head(self, head: bytes) -> None:
        """Parse the head that GuardedHttp has read. If `websockets` refuses it, send its response,
        which uvicorn leaves out, or a 400 if it has none."""
        super().data_received(head)
        if not self.handshake_initiated:
            refusal = b"".join(self.conn.data_to_send())
            self.transport.write(
                refusal or encode_last_response(replies.error_response(*_INVALID_UPGRADE))
            )
            self.transport.close()

    # ------------------------------------------------------------ accounting

    def _update_charge(self) -> None:
        """Charge the bytes that wait, and arm or disarm the deadline of the message under way."""
        if self.disconnected or self._is_lingering:
            return
        unfinished = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        whole = self._received_bytes + self._queued_bytes
        if unfinished + whole > UNCHARGED_BYTES:
            if self._share is None:
                self._share = IncomingShare(self.incoming_budget, self._fail_over_budget)
            self._share.charge(unfinished, whole)
            if self._is_lingering:
                return
        elif self._share is not None:
            self._share.release()
            self._share = None  # it refers to this object
        if self.read_paused or not (unfinished or self.frames):
            if self._deadline is not None:
                self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(MESSAGE_TIMEOUT_S, self._fail_late_message)

    def send_receive_event_to_app(self) -> None:
        size = sum(map(len, self.frames))
        super().send_receive_event_to_app()
        self._disarm()  # the next message has a time of its own
        if not self.close_sent:
            self._queued_message_bytes.append(size)
            self._queued_bytes += size

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message. The application has finished with the one before."""
        self._received_bytes = 0
        if self._share is not None:
            self._update_charge()
        if not self.queue.empty():
            await self.read_turns.wait()
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()
        if message["type"] == "websocket.receive":
            self._received_bytes = self._queued_message_bytes.popleft()
            self._queued_bytes -= self._received_bytes
        self._update_charge()
        return message

    def _release_charge(self) -> None:
        self._disarm()
        if self._share is not None:
            self._share.release()
            self._share = None  # it refers to this object

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _fail_over_budget(self) -> None:
        limit = self.incoming_budget.bytes_max
        self._fail(
            CloseCode.TRY_AGAIN_LATER, f"the server holds {limit:,} bytes of unfinished messages"
        )

    def _fail_late_message(self) -> None:
        self._deadline = None
        self._fail(
            CloseCode.POLICY_VIOLATION, f"a message took over {MESSAGE_TIMEOUT_S:g} s to arrive"
        )

    def _fail(self, code: CloseCode, reason: str) -> None:
        if self._is_lingering or self.transport.is_closing():
            return
        if self._is_open:
            self.conn.fail(code, reason)
            self.handle_parser_exception()
        else:
            self.transport.abort()

    def handle_parser_exception(self) -> None:
        """Close after a frame that is too long, not masked or not UTF-8: send the close code, close
        the sending side, and read on for a while."""
        assert self.conn.close_sent is not None, "the parser has a close code"
        self._release_charge()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._is_lingering = self.close_sent = True
        self.frames = []
        # While this timer runs the end of the session does not close the socket.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self._write_last(b"".join(self.conn.data_to_send()))
        self.read_paused = False
        self._read_on()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.scope.get("extensions", {}).clear()  # they refer to this object
        if not self.writable.is_set():
            self.transport.abort()


def frame_head(size: int, *, is_binary: bool) -> bytes:
    """The head of an unfragmented frame from a server, text or binary (RFC 6455, 5.2)."""
    first = 0x82 if is_binary else 0x81
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return _MEDIUM_FRAME_HEAD.pack(first, 126, size)
    return _LONG_FRAME_HEAD.pack(first, 127, size)

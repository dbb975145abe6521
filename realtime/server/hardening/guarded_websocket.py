"""WebSocket connections of uvicorn, with bounds on unfinished messages.

message that stays incomplete     closed after MESSAGE_TIMEOUT_S
message of too many fragments     closed over FRAGMENTS_MAX
many frames in one read           parsed one at a time in read turns (`read_turns`), each message
                                  when the application asks for it
connection that costs too much    closed with 1008 (`account`)
unfinished messages over budget   connection of the largest closed with 1013 (`incoming_budget`)
input after our close frame       read and discarded for LINGER_S, at most LINGER_BYTES_MAX
session ended, client not reading aborted, because unsent bytes would keep the socket open
"""

import asyncio
import math
import struct
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, apply_mask  # type: ignore[attr-defined]  # in C if it can be
from websockets.http11 import Request
from websockets.protocol import State
from websockets.streams import StreamReader

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.server import replies
from continuo.realtime.server.hardening.account import SHARE_MAX, WINDOW_S, LoopAccount
from continuo.realtime.server.hardening.guards import (
    LINGER_S,
    Lingerer,
    PausedReading,
    UnreadInput,
    encode_last_response,
)
from continuo.realtime.server.incoming_budget import (
    IncomingBudget,
    IncomingShare,
    ledger_of,
)
from continuo.realtime.server.security_log import security_log
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.transport.socket import (
    ACCOUNT_EXTENSION,
    PING_EXTENSION,
    RECEIVE_EXTENSION,
    SEND_NOW_EXTENSION,
)

MESSAGE_TIMEOUT_S = 60.0
"""Maximum time in seconds for an incomplete message to become complete, else close 1008. The time
restarts after the server has paused reading."""
FRAGMENTS_MAX = 1024
"""Maximum fragments of one message, else close 1008; one more is allowed for each
FRAGMENT_BYTES_MEAN bytes of the message."""
FRAGMENT_BYTES_MEAN = 64
"""Minimum mean size, in bytes, of the fragments of a message beyond its first FRAGMENTS_MAX. In
smaller fragments, the objects that hold the payload take more memory than the payload."""
UNCHARGED_BYTES = 4 * 1024
"""Connections with at most this many waiting bytes are not charged to the incoming budget, so that
ordinary messages need no bookkeeping."""
MESSAGE_S = 0.0002
"""Time that a read counts at least: handling of a small message begins after its turn."""
_MEDIUM_FRAME_HEAD, _LONG_FRAME_HEAD = struct.Struct("!BBH"), struct.Struct("!BBQ")
"""Layouts of the head of a frame whose payload length has 16 bits, and 64 bits."""
_OPEN = State.OPEN
"""A global name, because looking up a member of an enumeration takes ten times as long."""
_PING, _PONG = 0x89, b"\x8a"
"""First bytes of a ping and a pong."""
_UNFRAGMENTED_TEXT = 0x81
"""First byte of a frame: FIN and the opcode of text."""
CORKED_BYTES_MAX = 64 * 1024
"""Maximum bytes of a connection's corked frames; over it, they are written at once."""
PING_BEAT_S = 0.25
"""Pings of all connections are sent at multiples of this time on the event loop's clock."""
_PING_PAYLOAD = b"are you there?"
_INVALID_UPGRADE = (
    400,
    "invalid_upgrade",
    "The request is not a valid WebSocket upgrade.",
)


class _Reader(StreamReader):
    """The reader of a parser. Knows what the parser waits for."""

    is_between_frames = True
    _wanted_bytes = 0

    @property
    def missing_bytes(self) -> int:
        """Bytes that the parser waits for within a frame, such as those of a payload."""
        return self._wanted_bytes - len(self.buffer)

    def at_eof(self) -> Generator[None, None, bool]:
        self.is_between_frames = True
        is_at_eof = yield from super().at_eof()
        self.is_between_frames = False
        return is_at_eof

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        self._wanted_bytes = n
        return super().read_exact(n)


class GuardedWebSocket(Lingerer, PausedReading, UnreadInput, WebSocketsSansIOProtocol):
    """A WebSocket connection with a deadline for each message, a bound on its fragments, and a
    budget for the bytes of all unfinished messages of the server."""

    message_bytes_max: ClassVar[Mapping[str, int]] = {}
    """Maximum message bytes by path, where they differ from uvicorn's `ws_max_size`."""
    corked_sockets: ClassVar[list["GuardedWebSocket"]] = []
    """Connections with corked frames, which are written together at the end of this round of the
    event loop, so that a client process that reads from many of them wakes only once. Each server
    has its own list."""
    _corked_frames: bytes = b""
    incoming_budget: ClassVar[IncomingBudget]
    _share: IncomingShare | None = None
    """Share of the incoming budget; set while the bytes of incomplete, queued and received messages
    exceed UNCHARGED_BYTES."""
    _queued_bytes = 0
    """Size of the complete message that is queued for the application, in bytes. 0: there is
    none."""
    _received_bytes = 0
    """Size of the message that the application received last, in bytes; 0 once it has called
    `receive` for the next one."""
    _deadline: asyncio.TimerHandle | None = None
    """Timer of MESSAGE_TIMEOUT_S; set while a message is incomplete and reading is not paused."""
    _pong: bytes = b""
    """The encoded pong to the client's last ping, to be sent once the client reads again. Empty:
    none."""
    _is_lingering = False
    _ping_result: "asyncio.Future[bool] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.account = LoopAccount("websocket")
        super().connection_made(transport)
        self.conn.reader = self._reader = _Reader()
        self.conn.parser = self.conn.parse()  # the one before it refers to the reader before
        next(self.conn.parser)

    def handle_connect(self, event: Request) -> None:
        limit = self.message_bytes_max.get(event.path.partition("?")[0])
        if limit is not None:
            self.conn.max_message_size = limit
        super().handle_connect(event)
        event.headers.clear()  # their copy is in `scope`; the parser refers to the event for ever
        if not self.close_sent:
            extensions = self.scope.setdefault("extensions", {})
            extensions[SEND_NOW_EXTENSION] = {"write": self.send_now}
            extensions[RECEIVE_EXTENSION] = {"receive": self.receive}
            extensions[PING_EXTENSION] = {"ask": self.ping}
            extensions[ACCOUNT_EXTENSION] = {"account": self.account}

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Cork text frames, to be written at the end of this round of the event loop. Returns
        False, without effect, if the connection is not open or its send buffer is full."""
        if not (self.writable.is_set() and self.handshake_complete and self._is_open):
            return False
        if not self._corked_frames:
            if not self.corked_sockets:
                self.loop.call_soon(self._uncork_all)
            self.corked_sockets.append(self)
        for frame in frames:
            self._corked_frames += frame_head(len(frame)) + frame
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
        return self.conn.state is _OPEN and not self.close_sent and not self.transport.is_closing()

    async def send(self, message: Any) -> None:
        self._uncork()
        if message["type"] == "websocket.close" and not self.writable.is_set():
            # A client that does not read: the close frame follows what is buffered for it.
            self._fail(CloseCode(message.get("code", 1000)), message.get("reason") or "")
            return
        await super().send(message)
        if message["type"] == "websocket.accept":
            self.response.headers.clear()  # sent; thousands of idle connections would keep them
        if self.close_sent and self._unread:
            self.read_turns.submit(self)

    def shutdown(self) -> None:
        self._uncork()
        super().shutdown()

    def ping(self) -> "asyncio.Future[bool]":
        """Send a ping. The future resolves to True when the pong arrives, to False if the
        connection is closed."""
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
        """Send the pong to a ping; while the client does not read, keep the last one for later
        (RFC 6455, 5.5.3, requires no other)."""
        encoded = b"".join(self.conn.data_to_send())
        if self.writable.is_set() or not encoded.startswith(_PONG):
            self.transport.write(encoded)
        else:
            self._pong = encoded

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
        that buffered input is freed at once."""
        self.conn.parser.close()
        self.conn.parser_exc = None
        self.conn.reader.buffer = bytearray()
        self.frames = []
        self._drop_unread()

    def _resolve_ping(self, *, is_answered: bool) -> None:
        if self._ping_result is not None and not self._ping_result.done():
            self._ping_result.set_result(is_answered)

    def schedule_ping(self) -> None:
        """Schedule the next keepalive ping at a multiple of PING_BEAT_S, common to all connections,
        so that thousands of pings and pongs wake the process only a few times a second."""
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
        self._receive(data, MESSAGE_S)
        if self._unread:
            self._update_charge()

    @property
    def owner(self) -> TenantLedger | None:
        return ledger_of(self.scope)

    def parse_slice(self) -> bool:
        """Parse the next frame, or what has arrived of it, unless a message is queued for the
        application: a small message takes thirty times its size once it is parsed. After the close
        frame was sent, messages are discarded. Returns whether more can be parsed."""
        if self.account.is_exceeded:
            self._fail_costly()
        if self._is_lingering:
            self._discard_input(self._take(len(self._unread)))
        elif self._unread and self._may_parse:
            self._read_frame()
        if not self._unread:
            self.release_reading()
        return bool(self._unread) and self._may_parse

    @property
    def _may_parse(self) -> bool:
        return self.queue.empty() or self.close_sent

    def _read_frame(self) -> None:
        """Parse the rest of the present frame, or the next one. A ping, or a message of one frame,
        a text, is taken here: the parser of `websockets` takes three times as long."""
        if not self._reader.is_between_frames:
            self._read(self._take(self._reader.missing_bytes))
            return
        unread = self._unread
        head, length = 2, unread[1] & 0x7F if len(unread) > 1 else 0
        if length > 125:
            head = 4 if length == 126 else 10
            length = int.from_bytes(unread[2:head], "big")
        is_ping = unread[0] == _PING and length < 126
        is_text = unread[0] == _UNFRAGMENTED_TEXT and self.conn.current_size is None
        if (
            not ((is_text or is_ping) and self._is_open and len(unread) >= head + 4 + length)
            or not unread[1] & 0x80
            or length > (self.conn.max_message_size or length)
        ):
            # An incomplete head and what follows it of the frame have no bytes of the next one.
            self._read(self._take(head + 4 + length if len(unread) >= head else head))
            return
        frame = self._take(head + 4 + length)
        payload = apply_mask(frame[head + 4 :], frame[head : head + 4])
        if is_ping:
            self.conn.writes.append(_PONG + bytes((length,)) + payload)
            self.handle_ping()
            return
        self.curr_msg_data_type, self.frames = "text", [payload]
        self.send_receive_event_to_app()
        if self._share is not None or length + len(self._unread) > UNCHARGED_BYTES:
            self._update_charge()

    def _read(self, part: bytes) -> None:
        super().data_received(part)
        size = self.conn.current_size or 0
        if len(self.frames) > FRAGMENTS_MAX + size // FRAGMENT_BYTES_MEAN:
            self._fail(
                CloseCode.POLICY_VIOLATION, f"a message of over {FRAGMENTS_MAX:,} small fragments"
            )
        self._update_charge()

    def _read_head(self, head: bytes) -> None:
        """Parse the head of the upgrade request, which GuardedHttp has read. If `websockets`
        refuses it, send the response of `websockets`, which uvicorn does not send, or a 400 if
        there is none; then close."""
        super().data_received(head)
        if not self.handshake_initiated:
            refusal = b"".join(self.conn.data_to_send())
            self.transport.write(
                refusal or encode_last_response(replies.error_response(*_INVALID_UPGRADE))
            )
            self.transport.close()

    # ------------------------------------------------------------ accounting

    def _update_charge(self) -> None:
        """Charge incomplete, queued and received messages to the incoming budget; start or cancel
        the timer of an incomplete message."""
        if self.disconnected or self._is_lingering:
            return
        unfinished = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        whole = self._received_bytes + self._queued_bytes
        unread = self.unread_bytes
        if unfinished + unread + whole > UNCHARGED_BYTES:
            if self._share is None:
                self._share = IncomingShare(
                    self.incoming_budget, self._fail_over_budget, ledger_of(self.scope)
                )
            self._share.charge(unfinished + unread, whole)
            if self._is_lingering:
                return
        elif self._share is not None:
            self._share.release()
            self._share = None  # breaks a reference cycle: the share refers to this object
        if not (unfinished or self.frames):
            if self._deadline is not None:
                self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(MESSAGE_TIMEOUT_S, self._fail_late_message)

    def send_receive_event_to_app(self) -> None:
        """Queue a message. Reading goes on until there are unread bytes (`UnreadInput`), which
        takes fewer system calls than to pause it for each message, as uvicorn does."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        self._disarm()  # the next message gets a timer of its own
        if self.close_sent:
            return
        self._queued_bytes = len(data)
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
            return
        try:
            self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message that is not UTF-8")

    async def receive(self) -> Any:
        """Return the next message. The call means that the application has finished with the
        previous one, whose bytes are released from the budget."""
        self._received_bytes = 0
        if self._share is not None:
            self._update_charge()
        if self.account.is_exceeded:
            self._fail_costly()
        if self._unread and self.queue.empty():
            self.read_turns.submit(self, MESSAGE_S)
        message = await self.queue.get()
        if message["type"] == "websocket.receive":
            self._received_bytes, self._queued_bytes = self._queued_bytes, 0
        return message

    def _release_charge(self) -> None:
        self._disarm()
        if self._share is not None:
            self._share.release()
            self._share = None  # breaks a reference cycle: the share refers to this object

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

    def _fail_costly(self) -> None:
        if self._is_lingering or self.transport.is_closing():
            return
        security_log.report("costly_connection", self.client)
        self._fail(
            CloseCode.POLICY_VIOLATION,
            f"over {SHARE_MAX:.0%} of the server's time for {WINDOW_S:g} s without an event "
            "executed",
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
        """Close the connection after an invalid frame (too long, not masked, not UTF-8) or a
        message over a limit: send the close frame, close the sending side, and discard input for
        LINGER_S."""
        assert self.conn.close_sent is not None, "the parser has a close code"
        self._release_charge()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._is_lingering = self.close_sent = True
        self.frames = []
        self._drop_unread()
        # While this timer is set, uvicorn does not close the socket at the end of the session.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self._write_last(b"".join(self.conn.data_to_send()))

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.scope.get("extensions", {}).clear()  # breaks reference cycles with this object
        if not self.writable.is_set() and not self._is_lingering:
            self.transport.abort()


def frame_head(size: int) -> bytes:
    """Encode the head of an unfragmented text frame of a server with a payload of `size` bytes
    (RFC 6455, 5.2)."""
    if size < 126:
        return bytes((_UNFRAGMENTED_TEXT, size))
    if size < 1 << 16:
        return _MEDIUM_FRAME_HEAD.pack(_UNFRAGMENTED_TEXT, 126, size)
    return _LONG_FRAME_HEAD.pack(_UNFRAGMENTED_TEXT, 127, size)

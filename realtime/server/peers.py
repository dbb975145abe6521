"""What uvicorn leaves open to peers that hold on, closed.

half a request                  aborted: its head after HEAD_S, its body after BODY_S
an endless head, or trailers    refused with 414 or 431 at a bound of bytes and of lines
half a message                  closed after MESSAGE_S, or at a bound of fragments
too much of either, together    the largest is refused: HTTP 503, WebSocket 1013 (`incoming`)
sends on after we hung up       read and thrown away for LINGER_S, at most LINGER_BYTES, so that the
                                close frame is not overtaken by a reset
reads nothing, and the session  aborted: what waits for it would hold the socket
has ended
"""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NoReturn, cast

from starlette.responses import Response
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import http11
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from realtime.protocol.closing import CloseCode
from realtime.server import answers
from realtime.server.incoming import INCOMING, IncomingBytes, Share, release, share_of
from realtime.server.turns import Turns
from realtime.transport.socket import ASK, SEND_NOW

HEAD_S = 10.0
BODY_S = 60.0
REQUEST_LINE_BYTES_MAX = 16 * 1024
"""The target of a request: a URL of browsers is shorter. Over it 414."""
HEADERS_BYTES_MAX = 64 * 1024
"""Names and values of all header lines, trailers included. Over it 431."""
HEADERS_MAX = http11.MAX_NUM_HEADERS
"""Header lines, trailers included: as many as `websockets` takes in an upgrade. Over it 431."""
PIPELINED_MAX = 16
"""Requests that wait for the answer to one before; browsers and SDKs send none. Over it 503."""
SLICE_BYTES = 16 * 1024
"""A parser is fed no more at once: a chunk of the event loop, up to 256 KiB, has room for 14,000
requests or 43,000 empty frames, and limits are checked between slices."""
MESSAGE_S = 60.0
"""The time from the first byte of a message to its last, while the server reads. Over it close
1008."""
FRAGMENTS_MAX = 1024
"""Fragments of one message; with more, each must carry FRAGMENT_BYTES_MEAN. Over it close 1008."""
FRAGMENT_BYTES_MEAN = 64
"""A smaller fragment takes less memory than the object that keeps it."""
FREE_BYTES = 4 * 1024
"""Bytes of a WebSocket that are not charged, so that ordinary messages cost no bookkeeping."""
RETRY_AFTER_S = 2
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024
_MIDDLE, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")
"""Heads of frames, by how their size is written."""
CORKED_BYTES_MAX = 64 * 1024
"""More is written at once."""
BEAT_S = 0.25
"""Between pings."""
_ASKED = b"are you there?"


class _Stopped(Exception):
    """Ends the run of a parser whose connection has been refused."""


class _TurnwiseFlow(FlowControl):
    """Flow control of a connection that is read again in its turn after a large read."""

    waits = False
    """Whether the connection waits for its turn."""

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._read_on()

    def wait(self, turns: Turns) -> None:
        """Read no more before the next turn."""
        if not self.waits and not self._transport.is_closing():
            self.waits = True
            self._transport.pause_reading()
            turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self.waits = False
        self._read_on()

    def _read_on(self) -> None:
        if not (self.read_paused or self.waits or self._transport.is_closing()):
            self._transport.resume_reading()


class _CycleTransport:
    """The part of the transport that a request and its response use."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.close = close


class GuardedHttp(HttpToolsProtocol):
    """Each request has a time to arrive in, the first begins with the connection; its head has a
    size, and so have all unfinished requests together."""

    incoming: ClassVar[IncomingBytes]
    turns: ClassVar[Turns]
    url = b""
    _guard: asyncio.TimerHandle | None = None
    _head: Share | None = None
    """The charge for a head, set while it is under way."""
    _head_bytes = 0
    """Bytes since the last boundary that the parser has reported: of a head, of trailers, of the
    frame of a chunk."""
    _header_bytes = 0
    _refusal: bytes | None = None
    """The last answer of this connection; what comes after its cause is thrown away."""
    _refused_bytes = 0
    _responding: RequestResponseCycle | None = None
    """The request that the application is answering, or has answered last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _TurnwiseFlow(transport)
        self._arm(HEAD_S)

    def data_received(self, data: bytes) -> None:
        for part in _slices(data):
            self._read(part)
        if len(data) > SLICE_BYTES:
            self._flow.wait(self.turns)

    def _read(self, part: bytes) -> None:
        if self._refusal is not None:
            self._throw_away(part)
            return
        if self.parser is None or self.transport.is_closing():
            return
        if self._guard is None and self._answered:
            self._arm(HEAD_S)  # line ends before a request are not reported by the parser
        self._head_bytes += len(part)
        super().data_received(part)
        if self._refusal is None and (self._head_bytes or self._head is not None):
            self._check_head()

    def _check_head(self) -> None:
        if self._head_bytes > REQUEST_LINE_BYTES_MAX + HEADERS_BYTES_MAX:
            self._refuse(*(_long_headers() if self.url else _long_line()))
        else:
            self._hold_head(self._head_bytes)

    def _hold_head(self, size: int) -> None:
        if size and self._head is None:
            self._head = Share(self.incoming, self._refuse_for_room)
        if self._head is not None:
            self._head.hold(size)
        if not size:
            self._head = None  # which refers to us

    def send_400_response(self, msg: str) -> None:
        if self._refusal is None:
            super().send_400_response(msg)

    # ------------------------------------------------------------ what the parser reports

    def on_message_begin(self) -> None:
        if self._guard is None:
            self._arm(HEAD_S)
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > REQUEST_LINE_BYTES_MAX:
            self._stop(*_long_line())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += _line_bytes(name, value)
        if self._header_bytes > HEADERS_BYTES_MAX:
            self._stop(*_long_headers())
        if len(self.headers) >= HEADERS_MAX:
            message = f"The request has more than {HEADERS_MAX} header lines."
            self._stop(431, "headers_too_large", message)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        if self.parser.should_upgrade() and self._should_upgrade():  # type: ignore[union-attr]
            self._check_upgrade()
        if len(self.pipeline) >= PIPELINED_MAX:
            message = f"{PIPELINED_MAX} requests wait for the answer to one before, the most."
            self._stop(503, "too_many_pipelined_requests", message)
        self._arm(BODY_S)
        super().on_headers_complete()

    def _check_upgrade(self) -> None:
        """`websockets` reads the head again, and takes lines of MAX_LINE_LENGTH."""
        limit = http11.MAX_LINE_LENGTH
        if len(b"GET " + self.url + b" HTTP/1.1\r\n") > limit:
            message = f"The request line of a WebSocket upgrade is over {limit:,} bytes."
            self._stop(414, "request_line_too_long", message)
        for name, value in self.headers:
            if _line_bytes(name, value) > limit:
                field = name[:64].decode("latin-1")
                message = f"The header '{field}' of a WebSocket upgrade is over {limit:,} bytes."
                self._stop(431, "headers_too_large", message)

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)
        if self._answered:
            return  # an upgrade that has a body; or one that is not read
        share = self._body_share()
        share.hold(share.unfinished + len(body))
        if self._refusal is not None:
            raise _Stopped

    def _body_share(self) -> Share:
        scope = self.cycle.scope
        share = share_of(scope)
        if share is None:
            share = Share(self.incoming, self._refuse_for_room)
            scope.setdefault("extensions", {})[INCOMING] = share  # type: ignore
        return share

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._disarm()
        share = None if self._answered else share_of(self.cycle.scope)
        if share is not None:
            share.hold(0, share.bytes)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        self._hold_head(0)
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # which refers to us

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._responding = cycle
        transport = _CycleTransport(self.transport, self._close_behind)
        cycle.transport = transport  # type: ignore[assignment]
        super()._start_asgi_task(cycle, partial(_run_and_release, app))

    def _close_behind(self) -> None:
        """Close the connection behind a response. If the body of the request has not arrived, its
        rest is thrown away for a while: unread, it would reset the response."""
        cycle = self._responding
        unread = cycle is not None and cycle.response_complete and cycle.more_body
        if unread and not self.transport.is_closing():
            self._refusal = b""  # said when the response is complete, as any other
        else:
            self.transport.close()

    # ------------------------------------------------------------ refusing

    @property
    def _answered(self) -> bool:
        """Whether the request that the parser read last has its response, or there is none yet."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def _stop(self, status: int, code: str, message: str) -> NoReturn:
        """Refuse what the parser is reading. Raises _Stopped, which ends its run."""
        self._refuse(status, code, message)
        raise _Stopped

    def _refuse_for_room(self) -> None:
        limit = self.incoming.bytes_max
        message = f"The server holds {limit:,} bytes of unfinished requests, the most. Try again."
        self._refuse(503, "server_busy", message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer what is arriving, after the requests before it, and close the connection."""
        if self._refusal is not None or self.transport.is_closing():
            return
        kind = "server_error" if status == 503 else "invalid_request_error"
        answer = answers.error(status, code, message, kind=kind)
        if status == 503:
            answer.headers["Retry-After"] = str(RETRY_AFTER_S)
        self._refusal = _last_answer(answer)
        self._disarm()
        self._hold_head(0)
        if self._leaves_answer():
            self._send_refusal()

    def _leaves_answer(self) -> bool:
        """Whether the refusal may be written now: no response is owed before it."""
        if self._answered:
            return True
        cycle = self.cycle
        if not cycle.more_body:
            return False
        release(cycle.scope)
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return False
        if cycle.response_started:
            cycle.keep_alive = False
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def on_response_complete(self) -> None:
        owed = bool(self.pipeline)
        super().on_response_complete()
        if self._refusal is not None and not owed:
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self._refusal is None or self.transport.is_closing():
            return
        self.transport.write(self._refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._arm(LINGER_S)

    def _throw_away(self, part: bytes) -> None:
        self._refused_bytes += len(part)
        if self._refused_bytes > LINGER_BYTES:
            self.transport.abort()

    # ------------------------------------------------------------ the end

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._unset_keepalive_if_required()
        self._hold_head(0)
        super().connection_lost(exc)
        for cycle, _ in self.pipeline:
            release(cycle.scope)
        self.pipeline.clear()
        self.cycle = self._responding = None  # type: ignore[assignment]  # which refer to us

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._guard = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


async def _run_and_release(
    app: ASGI3Application, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    try:
        await app(scope, receive, send)
    finally:
        release(scope)


def _slices(data: bytes) -> Sequence[bytes]:
    if len(data) <= SLICE_BYTES:
        return (data,)
    return [data[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]


def _line_bytes(name: bytes, value: bytes) -> int:
    return len(name) + len(b": ") + len(value) + len(b"\r\n")


_NO_UPGRADE = (400, "invalid_upgrade", "The request is not a WebSocket upgrade that can be read.")


def _long_line() -> tuple[int, str, str]:
    message = f"The request line is over {REQUEST_LINE_BYTES_MAX:,} bytes."
    return 414, "request_line_too_long", message


def _long_headers() -> tuple[int, str, str]:
    return 431, "headers_too_large", f"The headers are over {HEADERS_BYTES_MAX:,} bytes."


def _last_answer(answer: Response) -> bytes:
    """Bytes of an HTTP response behind which the connection closes."""
    headers = [*answer.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[answer.status_code] + lines + b"\r\n" + bytes(answer.body)


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A socket that is closed with bytes unread is reset, and the reset drops what the peer has not
    read yet: our close frame among it."""

    message_bytes_max: ClassVar[Mapping[str, int]] = {}
    """By path, where it is not what the configuration says."""
    corked: ClassVar[list["GuardedWebSocket"]] = []
    """Peers that something was said to in this turn of the event loop. It goes out at its end:
    together, which wakes a reader of many once. Each server has its own."""
    _corked: bytes = b""
    incoming: ClassVar[IncomingBytes]
    turns: ClassVar[Turns]
    _waits = False
    """Whether the connection waits for its turn to be read."""
    _share: Share | None = None
    """Set while more than FREE_BYTES wait for the rest of their message, or for the application."""
    _waiting: "deque[int]"
    """Bytes of each whole message that the application has not received."""
    _waiting_bytes = 0
    """Their sum."""
    _received_bytes = 0
    """Bytes of the message that the application is handling: until it receives again."""
    _deadline: asyncio.TimerHandle | None = None
    """Set while a message is under way and the server reads."""
    _pong: bytes = b""
    """The answer to the last ping, kept while the peer does not read."""
    _lingering = False
    _lingered_bytes = 0
    _asked: "asyncio.Future[bool] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._waiting = deque()
        super().connection_made(transport)

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

    def handle_ping(self) -> None:
        """While the peer does not read, only its last ping is answered (RFC 6455, 5.5.3)."""
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
        self._answer(False)
        super().connection_lost(exc)
        self._release()
        self._forget()

    def _forget(self) -> None:
        """Break the reference cycles between the connection, its parser and what failed in it, so
        that its bytes are freed at once."""
        self.conn.parser.close()
        self.conn.parser_exc = None
        self.conn.reader.buffer = bytearray()
        self.frames = []

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
        if not self.handshake_initiated:
            self._read_head(data)
            return
        if not self.handshake_complete:
            self.transport.abort()  # a client must wait for the answer to its upgrade
            return
        for part in _slices(data):
            self._read(part)
        if len(data) > SLICE_BYTES and not self.transport.is_closing():
            self._waits = True
            self.transport.pause_reading()
            self.turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self._waits = False
        self._read_on()

    def _read_on(self) -> None:
        if not (self.read_paused or self._waits or self.transport.is_closing()):
            self.transport.resume_reading()

    def _read(self, part: bytes) -> None:
        if self._lingering:
            self._throw_away(part)
            return
        super().data_received(part)
        if len(self.frames) > FRAGMENTS_MAX and len(self.frames) > self._fragments_max:
            self._fail(CloseCode.POLICY, f"a message of over {FRAGMENTS_MAX:,} small fragments")
        self._count()

    @property
    def _fragments_max(self) -> int:
        return FRAGMENTS_MAX + (self.conn.current_size or 0) // FRAGMENT_BYTES_MEAN

    def _read_head(self, head: bytes) -> None:
        """The head that GuardedHttp has read. `websockets` may refuse it: then its answer is sent,
        which uvicorn leaves out, or ours if there is none."""
        super().data_received(head)
        if not self.handshake_initiated:
            said = b"".join(self.conn.data_to_send())
            self.transport.write(said or _last_answer(answers.error(*_NO_UPGRADE)))
            self.transport.close()

    # ------------------------------------------------------------ what waits

    def _count(self) -> None:
        """Charge what waits, and hold the message under way to its deadline."""
        if self.disconnected or self._lingering:
            return
        unfinished = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        whole = self._received_bytes + self._waiting_bytes
        if unfinished + whole > FREE_BYTES:
            if self._share is None:
                self._share = Share(self.incoming, self._fail_for_room)
            self._share.hold(unfinished, whole)
            if self._lingering:
                return
        elif self._share is not None:
            self._share.release()
            self._share = None  # which refers to us
        if self.read_paused or not (unfinished or self.frames):
            if self._deadline is not None:
                self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(MESSAGE_S, self._fail_for_time)

    def send_receive_event_to_app(self) -> None:
        size = sum(map(len, self.frames))
        super().send_receive_event_to_app()
        self._disarm()  # the next message has a time of its own
        if not self.close_sent:
            self._waiting.append(size)
            self._waiting_bytes += size

    async def receive(self) -> ASGIReceiveEvent:
        """The next message. The application has finished with the one before."""
        self._received_bytes = 0
        if self._share is not None:
            self._count()
        if not self.queue.empty():
            await self.turns.mine()
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()
        if message["type"] == "websocket.receive":
            self._received_bytes = self._waiting.popleft()
            self._waiting_bytes -= self._received_bytes
        self._count()
        return message

    def _release(self) -> None:
        self._disarm()
        if self._share is not None:
            self._share.release()
            self._share = None  # which refers to us

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _fail_for_room(self) -> None:
        limit = self.incoming.bytes_max
        self._fail(CloseCode.TRY_LATER, f"the server holds {limit:,} bytes of unfinished messages")

    def _fail_for_time(self) -> None:
        self._deadline = None
        self._fail(CloseCode.POLICY, f"a message took over {MESSAGE_S:g} s to arrive")

    def _fail(self, code: CloseCode, reason: str) -> None:
        if self._lingering or self.transport.is_closing():
            return
        if self._open:
            self.conn.fail(code, reason)
            self.handle_parser_exception()
        else:
            self.transport.abort()

    def _throw_away(self, part: bytes) -> None:
        self._lingered_bytes += len(part)
        if self._lingered_bytes > LINGER_BYTES:
            self.transport.abort()

    def handle_parser_exception(self) -> None:
        """Over-long, not masked, no UTF-8: says why, ends its own side, reads on for a while."""
        assert self.conn.close_sent is not None, "what the parser refused is said"
        self._release()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._lingering = self.close_sent = True
        self.frames = []
        # While this timer runs the end of the session does not close the socket.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.read_paused = False
        self._read_on()

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

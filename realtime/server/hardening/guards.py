"""Common parts of HTTP and WebSocket connections: unread input, lingering close."""

import asyncio
from typing import ClassVar

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from continuo.realtime.server.hardening.account import LoopAccount
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.tenants.ledger import TenantLedger

SLICE_BYTES = 512
"""Maximum bytes passed to a parser at once, if they may be many pieces. Limits and time are checked
between slices; one of pings, the costliest input, takes about 0.5 ms."""
READ_BYTES = 16 * 1024
"""Maximum bytes of a read. The event loop reads all sockets that have input before it does anything
else, so hundreds of connections that send at the same moment delay it by hundreds of reads."""
LIGHT_READ_BYTES = 2 * 1024
"""Maximum unread bytes of a light connection: more than a tenth of a second of audio."""
RECEIVE_S_PER_BYTE = 1e-9
"""Time that a byte takes before a parser has it: the kernel and the event loop copy it."""
LINGER_S = 2.0
"""Time in seconds for which input is read and discarded after the last response."""
LINGER_BYTES_MAX = 64 * 1024 * 1024


class BoundedReads(asyncio.BufferedProtocol):
    """Between a transport and a protocol: passes on what is received, READ_BYTES at a time."""

    __slots__ = ("_protocol",)
    _buffer: ClassVar[bytearray] = bytearray(READ_BYTES)
    """Shared by all connections: each read is passed on before the next one."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - of the protocol
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class PausedReading:
    """Mixin for a flow control or protocol whose reading is paused while it has unread input."""

    transport: asyncio.Transport
    read_paused: bool
    """Whether uvicorn has paused reading, because the application has not consumed earlier
    input."""
    _has_unread = False
    """Whether reading is paused because earlier input is not parsed yet."""

    def hold_reading(self) -> None:
        """Pause reading until `release_reading`."""
        if not self._has_unread and not self.transport.is_closing():
            self._has_unread = True
            self.transport.pause_reading()

    def release_reading(self) -> None:
        if self._has_unread:
            self._has_unread = False
            self._read_on()

    def _read_on(self) -> None:
        """Resume reading, unless uvicorn has paused it, unread input waits, or the connection is
        closing."""
        if not (self.read_paused or self._has_unread or self.transport.is_closing()):
            self.transport.resume_reading()


class UnreadInput:
    """Mixin for a protocol whose received bytes are parsed in read turns. Bytes that wait for a
    turn stay here, and reading is paused meanwhile."""

    transport: asyncio.Transport
    read_turns: ClassVar[ReadTurns]
    account: LoopAccount
    _unread: bytes | bytearray = b""
    """A bytearray once a part of it is parsed: its ends change without a copy of the rest."""

    _received_s = 0.0
    """Time that it took to receive bytes, not charged yet."""

    @property
    def unread_bytes(self) -> int:
        return len(self._unread)

    @property
    def owner(self) -> TenantLedger | None:
        """The tenant of the connection, or of its last request. None: not known."""
        raise NotImplementedError

    @property
    def is_light(self) -> bool:
        self.account.tenant = self.owner
        return len(self._unread) <= LIGHT_READ_BYTES and self.account.is_light

    def hold_reading(self) -> None:
        raise NotImplementedError

    def release_reading(self) -> None:
        raise NotImplementedError

    def parse_slice(self) -> bool:
        """Parse one slice of the unread bytes. Returns whether another one can be parsed."""
        raise NotImplementedError

    def spend(self, seconds: float) -> None:
        self.account.spend(seconds + self._received_s)
        self._received_s = 0.0

    def abort(self) -> None:
        self.transport.abort()

    def _receive(self, data: bytes, least_s: float = 0.0) -> None:
        """Parse the bytes of a read, now or in later turns. `least_s`: `ReadTurns.submit`."""
        if self._unread:
            self._unread += data
        else:
            self._unread = data
        self._received_s += len(data) * RECEIVE_S_PER_BYTE
        self.read_turns.submit(self, least_s + self._received_s)
        if self._unread:
            self.hold_reading()

    def _take(self, size: int) -> bytes:
        """Remove and return up to `size` unread bytes."""
        if size >= len(self._unread):
            part, self._unread = bytes(self._unread), b""
            return part
        part = bytes(memoryview(self._unread)[:size])
        if isinstance(self._unread, bytes):
            self._unread = bytearray(self._unread)
        del self._unread[:size]
        return part

    def _drop_unread(self) -> None:
        """Discard what is not parsed, and wait for no turn."""
        self._unread = b""
        self.read_turns.withdraw(self)
        self.release_reading()


class Lingerer:
    """Mixin for a protocol with a lingering close: after the last response, input is discarded.

    If a socket is closed with unread input, the connection is reset, and the reset discards data
    that the client has not read yet, including the last response. So input is read for LINGER_S
    more.
    """

    transport: asyncio.Transport
    _lingered_bytes = 0

    def _write_last(self, response: bytes) -> None:
        """Send `response` and close the sending side of the connection."""
        self.transport.write(response)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _discard_input(self, part: bytes) -> None:
        """Count and discard input. Aborts the connection if the total exceeds LINGER_BYTES_MAX."""
        self._lingered_bytes += len(part)
        if self._lingered_bytes > LINGER_BYTES_MAX:
            self.transport.abort()


def encode_last_response(response: Response) -> bytes:
    """Encode an HTTP/1.1 response with `Connection: close`."""
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)

"""Common parts of HTTP and WebSocket connections: sliced reads, read turns, lingering close."""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from continuo.realtime.server.hardening.read_turns import ReadTurns

SLICE_BYTES = 16 * 1024
"""Bytes that a parser is fed at once. A read of the event loop, up to 256 KiB, has room for 14,000
requests or 43,000 empty frames, and limits are checked between slices."""
LINGER_S = 2.0
"""Time for which input is still read and discarded after the last response."""
LINGER_BYTES_MAX = 64 * 1024 * 1024


class TurnwiseReader:
    """Mixin of a flow control that waits for a read turn after a large read."""

    transport: asyncio.Transport
    read_paused: bool
    """Whether the application accepts no more yet."""
    _waits = False
    """Whether the connection waits for its turn."""

    def _wait(self, turns: ReadTurns) -> None:
        """Pause reading until the next turn."""
        if not self._waits and not self.transport.is_closing():
            self._waits = True
            self.transport.pause_reading()
            turns.call_in_turn(self._take_turn)

    def _take_turn(self) -> None:
        self._waits = False
        self._read_on()

    def _read_on(self) -> None:
        """Resume reading unless the application or the turn forbids it."""
        if not (self.read_paused or self._waits or self.transport.is_closing()):
            self.transport.resume_reading()


class Lingerer:
    """Mixin of a protocol with a lingering close: after its last response, it discards input.

    A socket that is closed with bytes unread is reset, and the reset discards what the client has
    not read yet, including the last response. So input is read for LINGER_S more.
    """

    transport: asyncio.Transport
    _lingered_bytes = 0

    def _write_last(self, response: bytes) -> None:
        """Send the last response and close the sending side."""
        self.transport.write(response)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _discard_input(self, part: bytes) -> None:
        """Discard input. Aborts the connection over LINGER_BYTES_MAX."""
        self._lingered_bytes += len(part)
        if self._lingered_bytes > LINGER_BYTES_MAX:
            self.transport.abort()


def slices(data: bytes) -> Sequence[bytes]:
    """The bytes of a read in parts of at most SLICE_BYTES."""
    if len(data) <= SLICE_BYTES:
        return (data,)
    return [data[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]


def encode_last_response(response: Response) -> bytes:
    """Encode an HTTP response after which the connection closes."""
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)

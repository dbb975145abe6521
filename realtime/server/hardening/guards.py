"""Common parts of HTTP and WebSocket connections: sliced reads, read turns, lingering close."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from continuo.realtime.server.hardening.read_turns import ReadTurns

SLICE_BYTES = 16 * 1024
"""Maximum bytes passed to a parser at once. Limits are checked between slices, because one read of
the event loop, up to 256 KiB, can contain 14,000 requests or 43,000 empty frames."""
LINGER_S = 2.0
"""Time in seconds for which input is read and discarded after the last response."""
LINGER_BYTES_MAX = 64 * 1024 * 1024


class TurnwiseReader:
    """Mixin for a flow control or protocol that waits for a read turn after a large read."""

    transport: asyncio.Transport
    read_paused: bool
    """Whether uvicorn has paused reading, because the application has not consumed earlier
    input."""
    _waits = False
    """Whether reading is paused until this connection's read turn."""

    def _wait(self, turns: ReadTurns, then: Callable[[], None] = lambda: None) -> None:
        """Pause reading until this connection's next read turn, in which `then` is called."""
        if not self._waits and not self.transport.is_closing():
            self._waits = True
            self.transport.pause_reading()
            turns.call_in_turn(partial(self._take_turn, then))

    def _take_turn(self, then: Callable[[], None]) -> None:
        self._waits = False
        self._read_on()
        then()

    def _read_on(self) -> None:
        """Resume reading, unless uvicorn has paused it, a read turn is pending, or the connection
        is closing."""
        if not (self.read_paused or self._waits or self.transport.is_closing()):
            self.transport.resume_reading()


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


def slices(data: bytes) -> Sequence[bytes]:
    """Split the bytes of a read into slices of at most SLICE_BYTES."""
    if len(data) <= SLICE_BYTES:
        return (data,)
    return [data[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]


def encode_last_response(response: Response) -> bytes:
    """Encode an HTTP/1.1 response with `Connection: close`."""
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)

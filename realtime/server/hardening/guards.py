"""Common to HTTP and WebSocket connections: sliced reads, turns to read, the last answer."""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from continuo.realtime.server.hardening.read_turns import ReadTurns

SLICE_BYTES = 16 * 1024
"""A parser is fed no more at once: a chunk of the event loop, up to 256 KiB, has room for 14,000
requests or 43,000 empty frames, and limits are checked between slices."""
LINGER_S = 2.0
"""The time that input is still read and discarded after the last answer."""
LINGER_BYTES_MAX = 64 * 1024 * 1024


class TurnwiseReader:
    """Mixin of a flow control that reads again in its turn after a large read."""

    transport: asyncio.Transport
    read_paused: bool
    """Whether the application does not take more yet."""
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
    """Mixin of a protocol that sends a last answer, then reads and discards input for a while.

    A socket that is closed with bytes unread is reset, and the reset drops what the client has not
    read yet: the last answer among it.
    """

    transport: asyncio.Transport
    _lingered_bytes = 0

    def _write_last(self, answer: bytes) -> None:
        """Send the last answer and close the sending side."""
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _throw_away(self, part: bytes) -> None:
        """Discard input. Aborts the connection over LINGER_BYTES."""
        self._lingered_bytes += len(part)
        if self._lingered_bytes > LINGER_BYTES_MAX:
            self.transport.abort()


def slices(data: bytes) -> Sequence[bytes]:
    """The bytes of a read in parts of at most SLICE_BYTES."""
    if len(data) <= SLICE_BYTES:
        return (data,)
    return [data[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]


def last_answer(answer: Response) -> bytes:
    """The bytes of an HTTP response after which the connection closes."""
    headers = [*answer.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[answer.status_code] + lines + b"\r\n" + bytes(answer.body)

"""Outbox: the bounded send queue of a connection. With it, a client that reads slowly neither
stalls its session nor uses unbounded memory."""

import asyncio
from collections.abc import Callable

from continuo.realtime.errors import ConnectionCloseError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.realtime_api import ServerEvent, encode_frame
from continuo.realtime.transport.backlog import Backlog
from continuo.realtime.transport.socket import Socket


def _ignore(_size_bytes: int) -> None:
    pass


def _do_nothing() -> None:
    pass


class Outbox:
    """The send queue of one connection.

    `put` sends events at once if the socket accepts them without waiting, else adds them to the
    backlog, which `run` sends. While the backlog is over its bound (`outbox_bytes_max`),
    `wait_for_room` blocks what would add to it. If the backlog is over the bound for too long, or
    by far, or if the client does not read at all, `run` raises ConnectionCloseError.
    """

    def __init__(
        self,
        socket: Socket,
        limits: Limits,
        encode: Callable[[ServerEvent], bytes | None] = encode_frame,
        hold: Callable[[int], None] = _ignore,
        on_full: Callable[[], None] = _do_nothing,
    ) -> None:
        """Args:
        socket: to one client.
        limits: on the bytes that wait, and on the time that they may.
        encode: returns the frame of an event, or None if the client does not get it.
        hold: called with each change of the bytes that wait.
        on_full: called when the backlog exceeds its bound.
        """
        self._socket = socket
        self._limits = limits
        self._encode = encode
        self._hold = hold
        self._on_full = on_full
        self._held_bytes = 0
        self._backlog = Backlog(encode)
        self._filled: asyncio.Future[None] | None = None
        """The end of the wait of `run` for the next frame; None if it does not wait. A future,
        because an event has besides a deque of 760 bytes."""
        self._sent: asyncio.Event | None = None
        """The event for which `wait_until_sent` waits. Created when the backlog gets its first
        frame; triggered, and replaced by None, when the backlog is empty again. None saves memory:
        most connections have no backlog for hours."""
        self._room: asyncio.Event | None = None
        """The event for which `wait_for_room` waits. Created when the backlog exceeds its bound;
        triggered, and replaced by None, when the backlog is within its bound again."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        self._is_too_slow = False

    def put(self, *events: ServerEvent) -> None:
        """Send or queue one event, or several that are encoded from one conversation event."""
        if self._sent is None:
            frames = [frame for event in events if (frame := self._encode(event)) is not None]
            if not frames or self._socket.send_now(frames):
                return
            self._sent = asyncio.Event()
        for event in events:
            self._backlog.put(event)
        self._charge(self._backlog.size_bytes)
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)
        is_over_limit = self._backlog.size_bytes > self._limits.outbox_bytes_max
        if is_over_limit and self._slow_timer is None:
            self._room = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._slow_timer = loop.call_later(
                self._limits.outbox_over_limit_s_max, self._disconnect_slow_reader
            )
            self._on_full()
        if self._backlog.size_bytes > self._limits.outbox_snapshot_bytes_max:
            self._disconnect_slow_reader()

    @property
    def is_full(self) -> bool:
        """Whether the backlog is over its bound."""
        return self._room is not None

    async def wait_for_room(self) -> None:
        """Wait until the backlog is within its bound."""
        if self._room is not None:
            await self._room.wait()

    async def wait_until_sent(self) -> None:
        """Wait until the backlog is empty."""
        if self._sent is not None:
            await self._sent.wait()

    async def run(self) -> None:
        """Send the backlog until cancelled. Raises SocketClosed, and ConnectionCloseError if the
        reader is too slow."""
        self._sender = asyncio.current_task()
        try:
            await self._send()
        except asyncio.CancelledError:
            if self._is_too_slow:
                raise ConnectionCloseError(
                    CloseCode.TRY_AGAIN_LATER, "the client reads too slowly"
                ) from None
            raise
        finally:
            self._sender = None
            if self._slow_timer is not None:
                self._slow_timer.cancel()

    async def _send(self) -> None:
        while True:
            self._charge(self._backlog.size_bytes)
            frame = self._backlog.pop()
            if frame is None:
                if self._sent is not None:
                    self._sent.set()
                    self._sent = None
                self._filled = asyncio.get_running_loop().create_future()
                await self._filled
                continue
            try:
                async with asyncio.timeout(self._limits.send_timeout_s):
                    await self._socket.send(frame.decode())
            except TimeoutError:
                raise ConnectionCloseError(
                    CloseCode.TRY_AGAIN_LATER, "the client does not read"
                ) from None
            if (
                self._slow_timer is not None
                and self._backlog.size_bytes <= self._limits.outbox_bytes_max
            ):
                self._slow_timer.cancel()
                self._slow_timer = None
                if self._room is not None:
                    self._room.set()
                    self._room = None

    def close(self) -> None:
        """Release what waits, when the connection has ended."""
        self._charge(0)
        self._hold, self._on_full = _ignore, _do_nothing

    def _charge(self, size_bytes: int) -> None:
        if size_bytes != self._held_bytes:
            self._hold(size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

    def _disconnect_slow_reader(self) -> None:
        self._is_too_slow = True
        if self._sender is not None:
            self._sender.cancel()

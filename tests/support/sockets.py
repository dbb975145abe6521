"""FakeSocket: a client socket without a network."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.transport import SocketClosed
from continuo.realtime.transport.socket import Account, Unmetered
from tests.support.event_buffer import EventBuffer


class FakeSocket:
    """Client socket as the server sees it.

    A test puts the client's frames into `frames`, and None for a disconnection; `sent` holds the
    decoded frames that the server has sent. While `peer_reads` is cleared, the client does not read
    and `send` blocks.
    """

    def __init__(self) -> None:
        self.frames: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._events: EventBuffer[dict[str, Any]] = EventBuffer()
        self.sent = self._events.events
        self.peer_reads = asyncio.Event()
        self.peer_reads.set()
        self.closed: tuple[CloseCode, str] | None = None
        self.account: Account = Unmetered()

    async def recv(self) -> str | bytes:
        frame = await self.frames.get()
        if frame is None:
            raise SocketClosed
        return frame

    async def send(self, frame: str) -> None:
        await self.peer_reads.wait()
        self._events.add(json.loads(frame))

    def send_now(self, frames: Sequence[bytes]) -> bool:
        if self.peer_reads.is_set():
            self._events.add(*map(json.loads, frames))
        return self.peer_reads.is_set()

    async def ping(self, timeout_s: float) -> bool:
        return self.closed is None

    async def close(self, code: CloseCode, reason: str) -> None:
        self.closed = (code, reason)

    def push_event(self, **event: object) -> None:
        self.frames.put_nowait(json.dumps(event))

    async def wait_for(self, type: str, count: int = 1) -> dict[str, Any]:
        """Wait until the server has sent `count` events of a type. Returns the last of these."""
        return await self._events.wait_until(lambda event: event["type"] == type, count)

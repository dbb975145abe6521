"""Socket: what a connection needs of a WebSocket."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from continuo.realtime.protocol.close_codes import CloseCode

_CLOSE_TIMEOUT_S = 3.0
"""How long a close may wait for a peer that does not read."""


class SocketClosed(Exception):
    """The other side is gone."""


class Socket(Protocol):
    async def recv(self) -> str | bytes:
        """One message. Raises SocketClosed."""
        ...

    async def send(self, frame: str | bytes) -> None:
        """A text frame, or a binary one. Returns when it is on its way; waits while the other side
        does not read. Raises SocketClosed."""
        ...

    def send_now(self, frames: Sequence[bytes], is_binary: bool, /) -> bool:
        """Frames that need not wait are on their way. False: none is sent, `send` would wait, or
        raise."""
        ...

    async def ping(self, timeout_s: float) -> bool:
        """Asks the other side, and says whether it has answered in time. What it sends meanwhile is
        received later."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Harmless if it is closed already."""
        ...


SEND_NOW_EXTENSION = "continuo.send_now"
"""ASGI extension of a server that can send frames at once: `write(frames, binary) -> bool`. Of the
work for a delta, the layers between an application and its server were the largest part."""
PING_EXTENSION = "continuo.ask"
"""ASGI extension of a server that can ask its peer: `ask() -> Future[bool]` sends a ping. True: it
is answered. False: the connection has ended."""
_READ_AHEAD_BYTES_MAX = 1024 * 1024
"""Received before it is wanted: an answer may stand behind it."""


class StarletteSocket:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        extensions = websocket.scope.get("extensions", {})
        self.send_now: Callable[[Sequence[bytes], bool], bool] = extensions.get(
            SEND_NOW_EXTENSION, {}
        ).get("write", _refuse_send_now)
        self._send_ping: Callable[[], asyncio.Future[bool]] = extensions.get(
            PING_EXTENSION, {}
        ).get("ask", _pong_at_once)
        self._received_ahead: list[Message] = []

    async def recv(self) -> str | bytes:
        message = (
            self._received_ahead.pop(0) if self._received_ahead else await self._websocket.receive()
        )
        if message["type"] != "websocket.receive":
            raise SocketClosed
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def send(self, frame: str | bytes) -> None:
        try:
            if isinstance(frame, str):
                await self._websocket.send_text(frame)
            else:
                await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise SocketClosed from error

    async def ping(self, timeout_s: float) -> bool:
        answer = self._send_ping()
        reading = asyncio.create_task(self._read_ahead(), name="read ahead")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_ahead(self) -> None:
        size = 0
        while size <= _READ_AHEAD_BYTES_MAX:
            message = await self._websocket.receive()
            self._received_ahead.append(message)
            if message["type"] != "websocket.receive":
                return
            size += len(message.get("text") or message.get("bytes") or "")

    async def close(self, code: CloseCode, reason: str) -> None:
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._websocket.close(code, reason)


def _pong_at_once() -> "asyncio.Future[bool]":
    answer = asyncio.get_running_loop().create_future()
    answer.set_result(True)
    return answer


def _refuse_send_now(frames: Sequence[bytes], is_binary: bool) -> bool:
    return False

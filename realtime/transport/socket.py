"""Socket: what a connection needs of a WebSocket."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from realtime.protocol.closing import CloseCode

_CLOSE_S = 3.0
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

    def send_now(self, frame: bytes, binary: bool, /) -> bool:
        """A frame that need not wait is on its way. False: it is not sent, `send` would wait, or
        raise."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Harmless if it is closed already."""
        ...


SEND_NOW = "continuo.send_now"
"""ASGI extension of a server that can send a frame at once: `write(frame, binary) -> bool`. Of the
work for a delta, the layers between an application and its server are the largest part."""


class StarletteSocket:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        extension = websocket.scope.get("extensions", {}).get(SEND_NOW, {})
        self.send_now: Callable[[bytes, bool], bool] = extension.get("write", _never)

    async def recv(self) -> str | bytes:
        message = await self._websocket.receive()
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

    async def close(self, code: CloseCode, reason: str) -> None:
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._websocket.close(code, reason)


def _never(frame: bytes, binary: bool) -> bool:
    return False

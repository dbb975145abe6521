"""Socket: the interface of a WebSocket that a connection uses, and its implementation on ASGI."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.request_context import current_request

_CLOSE_TIMEOUT_S = 3.0
"""Timeout of closing a connection whose peer does not read."""


NO_CLOSE_CODE = 1005
"""Stands for the code of a peer that has disconnected without one."""


class SocketClosed(Exception):
    """Raised when the peer has disconnected."""


_Result = TypeVar("_Result")


class Account(Protocol):
    """The account of a connection's time on the event loop."""

    async def timed(
        self, function: Callable[..., Coroutine[Any, Any, _Result]], *arguments: object
    ) -> _Result:
        """Call a coroutine function, and charge the time that its steps take."""
        ...

    def credit(self) -> None:
        """Note that an event was executed."""
        ...


class Unmetered:
    """The account of a socket whose server keeps none."""

    async def timed(
        self, function: Callable[..., Coroutine[Any, Any, _Result]], *arguments: object
    ) -> _Result:
        return await function(*arguments)

    def credit(self) -> None:
        """No effect."""


class Socket(Protocol):
    account: Account

    async def recv(self) -> str | bytes:
        """Receive a message. Raises SocketClosed."""
        ...

    async def send(self, frame: str) -> None:
        """Send a text frame. Waits while the peer does not read. Raises SocketClosed."""
        ...

    def send_now(self, frames: Sequence[bytes], /) -> bool:
        """Send text frames, encoded as UTF-8, if that needs no waiting. Returns False if none is
        sent, because `send` would wait or raise."""
        ...

    async def ping(self, timeout_s: float) -> bool:
        """Send a ping. Returns whether the peer responds within `timeout_s`. Messages received
        while waiting are kept for `recv`."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Close the connection; harmless if it is closed."""
        ...


SEND_NOW_EXTENSION = "continuo.send_now"
"""ASGI extension of a server that can send text frames without waiting: `write(frames) -> bool`,
with the result of `Socket.send_now`. Bypasses the layers between application and server, which took
most of the time to send a delta."""
RECEIVE_EXTENSION = "continuo.receive"
"""ASGI extension of a server: `receive() -> Message`, its own, which bypasses the layers between
application and server."""
PING_EXTENSION = "continuo.ask"
"""ASGI extension of a server that can ping its peer: `ask() -> Future[bool]`. The result is True if
the peer has responded, False if the connection has ended."""
ACCOUNT_EXTENSION = "continuo.account"
"""ASGI extension of a server that keeps an Account of the connection, which is `account`."""
_READ_AHEAD_BYTES_MAX = 1024 * 1024
"""Limit on messages kept for `recv` while `ping` waits: they are read because the pong may arrive
after them."""
_MESSAGE_BYTES = 256
"""Memory that a message takes besides its text; a limit on the text alone would permit a hundred
times as much in short messages."""


class StarletteSocket:
    """A Socket on a WebSocket of Starlette."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        extensions = websocket.scope.get("extensions", {})
        self.send_now: Callable[[Sequence[bytes]], bool] = extensions.get(
            SEND_NOW_EXTENSION, {}
        ).get("write", _refuse_send_now)
        self.account: Account = extensions.get(ACCOUNT_EXTENSION, {}).get("account", Unmetered())
        self._send_ping: Callable[[], asyncio.Future[bool]] = extensions.get(
            PING_EXTENSION, {}
        ).get("ask", _pong_at_once)
        self._receive: Callable[[], Awaitable[Message]] = extensions.get(RECEIVE_EXTENSION, {}).get(
            "receive", websocket.receive
        )
        self._is_disconnected = False
        self._received_ahead: list[Message] = []

    async def recv(self) -> str | bytes:
        message = self._received_ahead.pop(0) if self._received_ahead else await self._receive()
        if message["type"] != "websocket.receive":
            self._is_disconnected = True
            current_request().close_code = message.get("code", NO_CLOSE_CODE)
            raise SocketClosed
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def send(self, frame: str) -> None:
        try:
            await self._websocket.send_text(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise SocketClosed from error

    async def ping(self, timeout_s: float) -> bool:
        pong = self._send_ping()
        reading = asyncio.create_task(self._read_ahead(), name="read ahead")
        try:
            async with asyncio.timeout(timeout_s):
                return await pong
        except TimeoutError:
            return False
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_ahead(self) -> None:
        size = 0
        while size <= _READ_AHEAD_BYTES_MAX:
            message = await self._receive()
            self._received_ahead.append(message)
            if message["type"] != "websocket.receive":
                return
            size += _MESSAGE_BYTES + len(message.get("text") or message.get("bytes") or "")

    async def close(self, code: CloseCode, reason: str) -> None:
        if self._is_disconnected or self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._websocket.close(code, reason)
                current_request().close_code = code


def _pong_at_once() -> "asyncio.Future[bool]":
    pong = asyncio.get_running_loop().create_future()
    pong.set_result(True)
    return pong


def _refuse_send_now(_frames: Sequence[bytes]) -> bool:
    """Stand in for the extension on a server that lacks it."""
    return False

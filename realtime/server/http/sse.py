"""Server-sent events, and the cancellation of work whose client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientDisconnected(Exception):
    """Raised when the client disconnects before its response is complete."""


class SSEResponse(Response):
    """A streaming response that sends each chunk of a generator as soon as it is available.

    Closes the generator when the client disconnects, or when the send of a chunk takes longer than
    `send_s_max` seconds.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], send_s_max: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._send_s_max = send_s_max

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - an argument of every ASGI application
        receive: Receive,
        send: Send,
    ) -> None:
        sending = asyncio.create_task(self._send(send))
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            sending.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                async with asyncio.timeout(self._send_s_max):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def run_until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise
    ClientDisconnected."""
    working = asyncio.ensure_future(work)
    disconnected = asyncio.create_task(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((working, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        disconnected.cancel()
        working.cancel()
        await asyncio.gather(working, disconnected, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

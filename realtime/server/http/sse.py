"""Server-sent events, and the cancellation of work whose client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from continuo.realtime.errors import Refusal
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server import replies
from continuo.realtime.server.auth.open_connections import OpenConnections

T = TypeVar("T")


class ClientDisconnected(Exception):
    """Raised when the client disconnects before its response is complete."""


class SSEResponse(Response):
    """A streaming response that sends each chunk of a generator as soon as it is available.

    Closes the generator when the client disconnects, when the send of a chunk takes longer than
    `send_s_max` seconds, or when the credentials of the request are revoked.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        send_s_max: float,
        refuse: Callable[[Refusal], Response] = replies.refusal_response,
    ) -> None:
        """`refuse` makes the response if the tenant has too many connections."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._send_s_max = send_s_max
        self._refuse = refuse

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        open_connections: OpenConnections = scope["app"].state.open_connections
        credentials: Credentials = scope["state"]["credentials"]
        ended = asyncio.Event()
        try:
            async with (
                self._start_chunks() as first,
                open_connections.track(credentials, lambda _code, _reason: ended.set()),
            ):
                await self._send_until(ended, first, receive, send)
        except Refusal as refusal:
            await self._refuse(refusal)(scope, receive, send)

    @asynccontextmanager
    async def _start_chunks(self) -> AsyncGenerator[asyncio.Future[bytes | None]]:
        """Start the generator before anything can fail, and close it at the end: closing one that
        has not started runs none of its clean-up. Yields its first chunk, None if it has none."""
        async with aclosing(self._chunks):
            first = asyncio.ensure_future(anext(self._chunks, None))
            try:
                await asyncio.sleep(0)
                yield first
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def _send_until(
        self,
        ended: asyncio.Event,
        first: asyncio.Future[bytes | None],
        receive: Receive,
        send: Send,
    ) -> None:
        """Send until the end of the chunks, a disconnect, or `ended`."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._send(first, send), _wait_for_disconnect(receive), ended.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, first: asyncio.Future[bytes | None], send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        chunk = await first
        while chunk is not None:
            async with asyncio.timeout(self._send_s_max):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await anext(self._chunks, None)
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

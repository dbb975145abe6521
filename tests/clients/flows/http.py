"""HTTP below the SDK: what goes over it, both ways, is written down."""
# pyright: reportMissingImports=false

from collections.abc import AsyncIterator, Callable

import httpx2

Note = Callable[[str, str], None]
"""Takes "C" or "S", and what it says."""


class RecordedHttp(httpx2.AsyncBaseTransport):
    """`exchange` begins the record of one: what is asked, then the status, then the body, or each
    event of a stream."""

    def __init__(self, exchange: Callable[[], Note]) -> None:
        self._exchange = exchange
        self._wire = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._exchange()
        note("C", f"{request.method} {request.url.raw_path.decode()}")
        body = await request.aread()
        if body:
            note("C", body.decode())
        response = await self._wire.handle_async_request(request)
        again = ", Retry-After" if "Retry-After" in response.headers else ""
        note("S", f"{response.status_code}{again}")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = response.headers.get("Content-Type", "").startswith("text/event-stream")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=Noted(response.stream, note, b"\n\n" if events else b""),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._wire.aclose()


class Noted(httpx2.AsyncByteStream):
    """A body; where there is an `end` of an event, event by event."""

    def __init__(self, body: httpx2.AsyncByteStream, note: Note, end: bytes) -> None:
        self._body = body
        self._note = note
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        said = b""
        async for chunk in self._body:
            said += chunk
            while self._end and self._end in said:
                event, _, said = said.partition(self._end)
                self._note("S", event.rpartition(b"data: ")[2].decode())
            yield chunk
        if said:
            self._note("S", said.decode())

    async def aclose(self) -> None:
        await self._body.aclose()

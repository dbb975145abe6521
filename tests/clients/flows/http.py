"""HTTP below the SDK: what goes over it, both ways, is written down, and what the server says is
validated against the SDK's own types, which the SDK itself does not."""
# pyright: reportMissingImports=false

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.realtime import ClientSecretCreateResponse
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Note = Callable[[str, str], None]
"""Takes "C" or "S", and what it says."""
BODIES: dict[str, Any] = {
    "POST /v1/realtime/client_secrets": ClientSecretCreateResponse,
    "POST /v1/responses": Response,
    "GET /v1/responses/": Response,
    "POST /v1/chat/completions": ChatCompletion,
    "GET /v1/models/": Model,
}
EVENTS: dict[str, Any] = {
    "POST /v1/responses": ResponseStreamEvent,
    "GET /v1/responses/": ResponseStreamEvent,
    "POST /v1/chat/completions": ChatCompletionChunk,
}
CANCELLED, STEERED = '"reason":"cancelled"', '"reason":"steered"'
"""Clients expect the first after `response.cancel`, which the SDK does not know; it knows the other
of the kind."""


class RecordedHttp(httpx2.AsyncBaseTransport):
    """`exchange` begins the record of one: what is asked, then the status, then the body, or each
    event of a stream."""

    def __init__(self, exchange: Callable[[], Note]) -> None:
        self._exchange = exchange
        self._wire = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._exchange()
        asked = f"{request.method} {request.url.raw_path.decode()}"
        note("C", asked)
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
            stream=Noted(
                response.stream,
                note,
                _type(asked, EVENTS if events else BODIES) if response.is_success else None,
                b"\n\n" if events else b"",
            ),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._wire.aclose()


class Noted(httpx2.AsyncByteStream):
    """A body; where there is an `end` of an event, event by event."""

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        note: Note,
        type: TypeAdapter[Any] | None,
        end: bytes,
    ) -> None:
        self._body = body
        self._write = note
        self._type = type
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        said = b""
        async for chunk in self._body:
            said += chunk
            while self._end and self._end in said:
                event, _, said = said.partition(self._end)
                self._note(event.rpartition(b"data: ")[2].decode())
            yield chunk
        if said:
            self._note(said.decode())

    def _note(self, said: str) -> None:
        self._write("S", said)
        if self._type is not None and said.startswith("{") and not said.startswith('{"error"'):
            self._type.validate_json(said.replace(CANCELLED, STEERED))

    async def aclose(self) -> None:
        await self._body.aclose()


def _type(asked: str, types: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    """Of what is answered, where there is one."""
    found = [type for path, type in types.items() if asked.startswith(path)]
    return TypeAdapter(found[0]) if found else None

"""HTTP transport below the SDK that records both directions and validates response bodies.

The SDK itself does not validate what it receives against its types.
"""
# pyright: reportMissingImports=false

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItemList,
)
from openai.types.realtime import ClientSecretCreateResponse
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import TypeAdapter

Recorder = Callable[[str, str], None]
"""Takes the side, "C" or "S", and the frame, status or body that it sent."""
BODIES: dict[str, Any] = {
    "POST /v1/conversations/[^/]*/items": ConversationItemList,
    "GET /v1/conversations/[^/]*/items": ConversationItemList,
    "DELETE /v1/conversations/[^/]*$": ConversationDeletedResource,
    "(GET|POST|DELETE) /v1/conversations": Conversation,
    "POST /v1/realtime/client_secrets": ClientSecretCreateResponse,
    "POST /v1/responses/input_tokens": InputTokenCountResponse,
    "GET /v1/responses/[^/]*/input_items": ResponseItemList,
    "POST /v1/responses": Response,
    "GET /v1/responses/": Response,
    "POST /v1/chat/completions": ChatCompletion,
    "POST /v1/completions": Completion,
    "GET /v1/models/": Model,
}
"""Types of bodies, by a pattern of the request line."""
EVENTS: dict[str, Any] = {
    "POST /v1/responses": ResponseStreamEvent,
    "GET /v1/responses/": ResponseStreamEvent,
    "POST /v1/chat/completions": ChatCompletionChunk,
}
"""Types of events. Those of completions have none: their finish reason is null before the end,
which OpenAI documents and the SDK's type does not allow."""
CANCELLED, STEERED = '"reason":"cancelled"', '"reason":"steered"'
"""Clients expect the first reason after `response.cancel`; the SDK knows only the second."""


class RecordedHttp(httpx2.AsyncBaseTransport):
    """A transport that records each request: method and path, status, then the body or each event
    of a stream. `begin_exchange` begins such a record."""

    def __init__(self, begin_exchange: Callable[[], Recorder]) -> None:
        self._begin_exchange = begin_exchange
        self._wire = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        record = self._begin_exchange()
        request_line = f"{request.method} {request.url.raw_path.decode()}"
        record("C", request_line)
        body = await request.aread()
        if body:
            record("C", body.decode())
        response = await self._wire.handle_async_request(request)
        retry_after = ", Retry-After" if "Retry-After" in response.headers else ""
        record("S", f"{response.status_code}{retry_after}")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = response.headers.get("Content-Type", "").startswith("text/event-stream")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=RecordedBody(
                response.stream,
                record,
                _type(request_line, EVENTS if events else BODIES) if response.is_success else None,
                b"\n\n" if events else b"",
            ),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._wire.aclose()


class RecordedBody(httpx2.AsyncByteStream):
    """A response body that records itself: event by event if events have an `end`, else whole."""

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        record: Recorder,
        type: TypeAdapter[Any] | None,
        end: bytes,
    ) -> None:
        self._body = body
        self._write = record
        self._type = type
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer = b""
        async for chunk in self._body:
            buffer += chunk
            while self._end and self._end in buffer:
                event, _, buffer = buffer.partition(self._end)
                self._record(event.rpartition(b"data: ")[2].decode())
            yield chunk
        if buffer:
            self._record(buffer.decode())

    def _record(self, text: str) -> None:
        self._write("S", text)
        if self._type is not None and text.startswith("{") and not text.startswith('{"error"'):
            self._type.validate_json(text.replace(CANCELLED, STEERED))

    async def aclose(self) -> None:
        await self._body.aclose()


def _type(request_line: str, types: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    """Return the SDK's type of the response to a request, or None if the SDK has none."""
    found = [type for path, type in types.items() if re.match(path, request_line)]
    return TypeAdapter(found[0]) if found else None

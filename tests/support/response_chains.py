"""Client of the Responses API over its WebSocket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.web_servers import RunningServer

JsonEvent = dict[str, Any]
FINAL_EVENT_TYPES = ("response.completed", "response.incomplete", "response.failed")


class ResponsesClient:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str = "response.create", **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def receive(self) -> JsonEvent:
        return json.loads(await asyncio.wait_for(self.socket.recv(), 20))

    async def wait_for(self, *kinds: str) -> list[JsonEvent]:
        events = [await self.receive()]
        while events[-1]["type"] not in kinds:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.receive())
        return events

    async def create_response(self, text: str | None = None, /, **fields: Any) -> JsonEvent:
        """Create a response with input `text` and receive its events. Returns the final response.

        Asserts that the events are numbered from 0.
        """
        if text is not None:
            fields["input"] = text
        await self.send(**{"max_output_tokens": 4, **fields})
        events = await self.wait_for(*FINAL_EVENT_TYPES)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events[-1]["response"]

    async def expect_error(self, kind: str = "response.create", **fields: Any) -> JsonEvent:
        """Send an event and assert that the server answers with an error. Returns the error event;
        the connection stays open."""
        await self.send(kind, **fields)
        event = await self.receive()
        assert event["type"] == "error", event
        return event


@contextlib.asynccontextmanager
async def connect_responses_client(
    running: RunningServer, key: str | None = None
) -> AsyncIterator[ResponsesClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"ws://127.0.0.1:{running.port}/v1/responses"
    async with connect(url, additional_headers=headers, max_size=None) as socket:
        yield ResponsesClient(socket)


def output_text(response: JsonEvent) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def cached_tokens(response: JsonEvent) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]

"""Clients of the gateway's two WebSocket APIs: `RealtimeClient` and `ResponsesClient`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.web_servers import ACME, RunningServer

JsonEvent = dict[str, Any]
RECEIVE_TIMEOUT_S = 60.0
"""Timeout for one event, far above the expected delay."""
FINAL_EVENT_TYPES = ("response.completed", "response.incomplete", "response.failed")
LONG_RESPONSE = {"max_output_tokens": 300, "ignore_eos": True}
"""Settings of a response that takes long enough for a fault to occur while it is generated."""


class RequestRefused(Exception):
    """The server has sent an error event."""

    def __init__(self, error: JsonEvent) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.is_retryable = error["type"] == "server_error"

    async def back_off(self) -> None:
        """Wait before a retry. Raises the refusal itself if it is not retryable."""
        if not self.is_retryable:
            raise self
        await asyncio.sleep(0.05)


class EventClient:
    """Client that sends and receives events."""

    def __init__(self, socket: ClientConnection | None = None) -> None:
        self._socket = socket

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None, "not connected"
        return self._socket

    async def send(self, type: str = "response.create", **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def receive(self) -> JsonEvent:
        return json.loads(await asyncio.wait_for(self.socket.recv(), RECEIVE_TIMEOUT_S))

    async def receive_until(self, *types: str) -> list[JsonEvent]:
        """Receive up to the first event whose type is one of `types`. Returns all events.

        Raises RequestRefused if another event is an error.
        """
        events = [await self.receive()]
        while events[-1]["type"] not in types:
            if events[-1]["type"] == "error":
                raise RequestRefused(events[-1]["error"])
            events.append(await self.receive())
        return events

    async def wait_for(self, *types: str) -> JsonEvent:
        """Receive up to the first event whose type is one of `types`. Returns that event.

        Raises RequestRefused if another event is an error.
        """
        return (await self.receive_until(*types))[-1]

    async def expect(self, *types: str) -> JsonEvent:
        """Assert that the next events have these types. Returns the last of them."""
        event: JsonEvent = {}
        for expected in types:
            event = await self.receive()
            assert event["type"] == expected, event
        return event

    async def wait_close_code(self) -> int:
        """Receive until the connection closes. Returns the server's close code, 1006 if the server
        sent no close frame."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


class RealtimeClient(EventClient):
    """Client of a session, with the text of each response that it has received."""

    def __init__(self, socket: ClientConnection | None = None) -> None:
        super().__init__(socket)
        self.session: JsonEvent = {}
        """Session as created by the server."""
        self.last_event_id = ""
        """Id of the last event of any type: an error event is a valid resume cursor as well."""
        self.received_types: set[str] = set()
        self.response_texts: dict[str, str] = {}
        """Text of each response: its deltas, joined."""
        self.ended_responses: dict[str, JsonEvent] = {}

    @property
    def session_id(self) -> str:
        return self.session.get("id", "")

    @property
    def resume_query(self) -> str:
        """Query string for a connection that resumes the session after the last event received."""
        return f"session_id={self.session_id}&last_event_id={self.last_event_id}"

    async def resume(self, url: str, headers: dict[str, str] = ACME) -> None:
        """Connect again and resume the session, without waiting for the first event."""
        self._socket = await connect(f"{url}?{self.resume_query}", additional_headers=headers)

    async def receive(self) -> JsonEvent:
        event = await super().receive()
        self._apply(event)
        self.last_event_id = event["event_id"]
        return event

    def _apply(self, event: JsonEvent) -> None:
        self.received_types.add(event["type"])
        match event["type"]:
            case "session.created":
                self.session = event["session"]
            case "response.created":
                self.response_texts[event["response"]["id"]] = ""
            case "response.output_text.delta":
                self.response_texts[event["response_id"]] += event["delta"]
            case "response.done":
                self.ended_responses[event["response"]["id"]] = event["response"]
            case _:
                pass

    async def send_message(self, text: str, name: str = "", **fields: Any) -> None:
        """Send a user message with the item id `name`, without waiting for its acceptance."""
        await self.send("conversation.item.create", item=message_item(text, name), **fields)

    async def add_message(self, text: str, name: str = "") -> str:
        """Add a user message to the conversation. Returns its item id."""
        await self.send_message(text, name)
        return (await self.wait_for("conversation.item.done"))["item"]["id"]

    async def start_response(self, **response: Any) -> str:
        """Request a response and wait until it has been created. Returns its id."""
        await self.send("response.create", response=response)
        return (await self.wait_for("response.created"))["response"]["id"]

    async def wait_response(self, response: str) -> str:
        """Receive until `response` has ended. Returns its text."""
        while response not in self.ended_responses:
            await self.wait_for("response.done")
        ended = self.ended_responses[response]
        assert ended["status"] in ("completed", "incomplete"), ended
        return self.response_texts[response]

    async def complete_response(self, **response: Any) -> str:
        return await self.wait_response(await self.start_response(**response))

    async def wait_deltas(self, count: int) -> None:
        for _ in range(count):
            await self.wait_for("response.output_text.delta")


class ResponsesClient(EventClient):
    async def create_response(self, text: str | None = None, /, **fields: Any) -> JsonEvent:
        """Create a response with input `text` and receive its events. Returns the final response.

        Asserts that the events are numbered from 0.
        """
        if text is not None:
            fields["input"] = text
        await self.send(**{"max_output_tokens": 4, **fields})
        events = await self.receive_until(*FINAL_EVENT_TYPES)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events[-1]["response"]

    async def expect_error(self, type: str = "response.create", **fields: Any) -> JsonEvent:
        """Send an event and assert that the server answers with an error. Returns the error event;
        the connection stays open."""
        await self.send(type, **fields)
        return await self.expect("error")


def message_item(text: str, name: str = "", role: str = "user") -> JsonEvent:
    """Make a message item with the id `name`, or without an id."""
    content = [{"type": "output_text" if role == "assistant" else "input_text", "text": text}]
    item = {"type": "message", "role": role, "content": content}
    return {"id": name, **item} if name else item


@contextlib.asynccontextmanager
async def connect_realtime(
    url: str, headers: dict[str, str] = ACME, **options: Any
) -> AsyncIterator[RealtimeClient]:
    """Connect to the Realtime API. The first event is not received yet."""
    client = RealtimeClient(await connect(url, additional_headers=headers, **options))
    try:
        yield client
    finally:
        await client.socket.close()


@contextlib.asynccontextmanager
async def open_realtime_session(
    url: str, headers: dict[str, str] = ACME, **options: Any
) -> AsyncIterator[RealtimeClient]:
    """Connect to the Realtime API and wait until the session has been created."""
    async with connect_realtime(url, headers, **options) as client:
        await client.expect("session.created")
        yield client


@contextlib.asynccontextmanager
async def connect_responses(
    server: RunningServer, headers: dict[str, str] = ACME
) -> AsyncIterator[ResponsesClient]:
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    # No limit of the queue, so that unread events do not delay a close.
    async with connect(url, additional_headers=headers, max_size=None, max_queue=None) as socket:
        yield ResponsesClient(socket)


def output_text(response: JsonEvent) -> str:
    messages = (item for item in response["output"] if item["type"] == "message")
    return "".join(part["text"] for item in messages for part in item["content"])


def cached_tokens(response: JsonEvent) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]

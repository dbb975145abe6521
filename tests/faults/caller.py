"""ReconnectingClient: a Realtime client that resumes its session after every disconnect.

The client resumes after the last event it received, retries requests without a reply, and asserts
that no event is duplicated, out of order or missing.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.web_servers import API_KEY

JsonEvent = dict[str, Any]
EVENT_TIMEOUT_S = 60.0
"""Timeout for one event, far above the expected delay."""
DISCONNECT_ERRORS = (ConnectionClosed, OSError, InvalidHandshake, EOFError)
_names = itertools.count(1)


class ReconnectingClient:
    """`urls`: the gateways, tried in turn on every reconnect."""

    def __init__(self, *urls: str) -> None:
        self.urls: Sequence[str] = urls
        self.gateway_index = 0
        """Index (modulo their number) of the gateway of the next connection."""
        self.session_id = ""
        self.last_event_id = ""
        """Id of the last event of any type: an error event is a valid resume cursor as well."""
        self.resume_outcomes: list[str] = []
        """Outcome of each resume: `exact` or `snapshot`."""
        self.item_ids: list[str] = []
        """Ids in the order of their `conversation.item.added` events."""
        self.response_texts: dict[str, str] = {}
        """Text of each response: its deltas, joined."""
        self.ended_responses: dict[str, JsonEvent] = {}
        self.event_ids: set[str] = set()
        self.close_codes: set[int] = set()
        """Codes with which the server closed connections; 1006 without a close frame."""
        self._socket: ClientConnection | None = None
        self._rebuilding = False
        self._partial: str | None = None
        """The response that was open at the last snapshot: its deltas start from the beginning."""

    # ------------------------------------------------------------ connecting

    async def connect(self, *, last: str | None = None) -> JsonEvent:
        """Connect to the next gateway, resuming if there is a session. Returns the first event."""
        url = self.urls[self.gateway_index % len(self.urls)]
        if self.session_id:
            url = url.partition("?")[0]
            url += f"?session_id={self.session_id}&last_event_id={last or self.last_event_id}"
        self._socket = await connect(
            url,
            additional_headers={"Authorization": f"Bearer {API_KEY}"},
            proxy=None,
            open_timeout=EVENT_TIMEOUT_S,
            ping_interval=None,
            close_timeout=0.2,
        )
        return await self.receive()

    async def reconnect(self) -> None:
        """Disconnect, then try the gateways in turn until one resumes the session."""
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            while True:
                await self.disconnect()
                self.gateway_index += 1
                try:
                    event = await self.connect()
                    if event["type"] == "error":
                        assert event["error"]["type"] == "server_error", event
                        await asyncio.sleep(0.05)
                        continue
                    await self.synchronize()
                    return
                except DISCONNECT_ERRORS:
                    await asyncio.sleep(0.05)

    async def disconnect(self) -> None:
        """Abort the connection without a close frame."""
        if self._socket is not None:
            self._socket.transport.abort()
            await self._socket.wait_closed()
            self._socket = None

    async def close_session(self) -> None:
        """End the session, then disconnect."""
        await self.send(type="session.close")
        await self.wait_for("session.closed")
        await self.disconnect()

    async def wait_close_code(self) -> int:
        """Receive until the server closes. Returns its close code, 1006 if there is none."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

    # ------------------------------------------------------------ frames

    async def send(self, **event: Any) -> None:
        assert self._socket is not None, "not connected"
        await self._socket.send(json.dumps(event))

    async def receive(self) -> JsonEvent:
        assert self._socket is not None, "not connected"
        try:
            event: JsonEvent = json.loads(
                await asyncio.wait_for(self._socket.recv(), EVENT_TIMEOUT_S)
            )
        except ConnectionClosed as closed:
            self.close_codes.add(closed.rcvd.code if closed.rcvd else 1006)
            raise
        assert event["event_id"] not in self.event_ids, f"duplicate event: {event}"
        self.event_ids.add(event["event_id"])
        self._apply(event, outside_log="~" in event["event_id"])
        self.last_event_id = event["event_id"]
        return event

    def _apply(self, event: JsonEvent, outside_log: bool) -> None:
        """Update the state. `outside_log`: a reply outside the event log, which may be repeated."""
        match event["type"]:
            case "session.created":
                self.session_id = event["session"]["id"]
            case "session.updated" if "resume" in event["session"]:
                outcome = event["session"]["resume"]["resumed"]
                self.resume_outcomes.append(outcome)
                if outcome == "snapshot":
                    self.item_ids.clear()
                    self._partial = next(
                        (r for r in self.response_texts if r not in self.ended_responses), None
                    )
            case "conversation.item.added":
                known = event["item"]["id"] in self.item_ids
                assert not known or outside_log, f"duplicate item: {event}"
                self.item_ids += [] if known else [event["item"]["id"]]
            case "response.created":
                response = event["response"]["id"]
                assert response not in self.response_texts or self._partial == response, event
                self.response_texts[response] = ""
            case "response.output_text.delta":
                self.response_texts[event["response_id"]] += event["delta"]
            case "response.output_text.done":
                assert self.response_texts[event["response_id"]] == event["text"], (
                    "deltas differ from text"
                )
            case "response.done":
                response = event["response"]["id"]
                assert response not in self.ended_responses, f"duplicate end: {event}"
                self.ended_responses[response] = event["response"]

    async def wait_for(self, *types: str) -> JsonEvent:
        while True:
            event = await self.receive()
            if event["type"] in types:
                return event
            if event["type"] == "error":
                raise RequestRefused(event["error"])

    async def synchronize(self) -> None:
        """Receive every event the server has sent so far, up to the reply to a no-op."""
        await self.send(type="input_audio_buffer.clear")
        await self.wait_for("input_audio_buffer.cleared")

    # ------------------------------------------------------------ conversation

    async def send_message(self, text: str, name: str = "") -> str:
        """Send a user message until it is accepted, under one item id. Returns that id."""
        name = name or f"said_{next(_names)}"
        while name not in self.item_ids:
            try:
                await self.send(type="conversation.item.create", item=message_item(name, text))
                while name not in self.item_ids:
                    await self.wait_for("conversation.item.done")
            except DISCONNECT_ERRORS:
                await self.reconnect()
            except RequestRefused as refused:
                await refused.back_off()
        return name

    async def start_response(self, **response: Any) -> str:
        """Request a response until it has been created. Returns its id."""
        while True:
            try:
                await self.send(type="response.create", response=response)
                created = await self.wait_for("response.created")
                return created["response"]["id"]
            except DISCONNECT_ERRORS:
                before = len(self.response_texts)
                await self.reconnect()
                if len(self.response_texts) > before:
                    return next(reversed(self.response_texts))
            except RequestRefused as refused:
                await refused.back_off()

    async def wait_response(self, response: str) -> str:
        """Receive until `response` has ended, reconnecting if need be. Returns its text."""
        while response not in self.ended_responses:
            try:
                await self.wait_for("response.done")
            except DISCONNECT_ERRORS:
                await self.reconnect()
        ended = self.ended_responses[response]
        assert ended["status"] in ("completed", "incomplete"), ended
        return self.response_texts[response]

    async def complete_response(self, **response: Any) -> str:
        return await self.wait_response(await self.start_response(**response))

    async def wait_deltas(self, count: int) -> None:
        for _ in range(count):
            if (await self.wait_for("response.output_text.delta", "response.done"))["type"] == (
                "response.done"
            ):
                return


class RequestRefused(Exception):
    def __init__(self, error: JsonEvent) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.is_retryable = error["type"] == "server_error"

    async def back_off(self) -> None:
        """Wait before a retry. Raises the refusal itself if it is not retryable."""
        if not self.is_retryable:
            raise self
        await asyncio.sleep(0.05)


def message_item(name: str, text: str, role: str = "user") -> JsonEvent:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": name, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}

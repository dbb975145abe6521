"""ReconnectingClient: a Realtime client that resumes its session after every disconnect.

The client resumes after the last event it received, retries requests without a reply, and asserts
that no event is duplicated, out of order or missing.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.clients import JsonEvent, RealtimeClient, RequestRefused
from tests.support.web_servers import ACME

RECONNECT_TIMEOUT_S = 60.0
DISCONNECT_ERRORS = (ConnectionClosed, OSError, InvalidHandshake, EOFError)
_names = itertools.count(1)


class ReconnectingClient(RealtimeClient):
    """`urls`: the gateways, tried in turn on every reconnect."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.urls: Sequence[str] = urls
        self.headers = ACME
        """Headers of the next connection, with an API key."""
        self.gateway_index = 0
        """Index (modulo their number) of the gateway of the next connection."""
        self.resume_outcomes: list[str] = []
        """Outcome of each resume: `exact` or `snapshot`."""
        self.item_ids: list[str] = []
        """Ids in the order of their `conversation.item.added` events."""
        self.event_ids: set[str] = set()
        self.close_codes: set[int] = set()
        """Codes with which the server closed connections; 1006 without a close frame."""
        self.refused_with: set[str] = set()
        """Codes of errors with which the server refused to resume the session for now."""
        self._partial: str | None = None
        """The response that was open at the last snapshot: its deltas start from the beginning."""

    # ------------------------------------------------------------ connecting

    async def connect(self, *, last: str | None = None) -> JsonEvent:
        """Connect to the next gateway, resuming if there is a session. Returns the first event.

        `last`: id of the event to resume after, instead of the last one received.
        """
        self.last_event_id = last or self.last_event_id
        url = self.urls[self.gateway_index % len(self.urls)]
        if self.session:
            url = f"{url.partition('?')[0]}?{self.resume_query}"
        self._socket = await connect(
            url,
            additional_headers=self.headers,
            proxy=None,
            open_timeout=RECONNECT_TIMEOUT_S,
            ping_interval=None,
            close_timeout=0.2,
        )
        return await self.receive()

    async def reconnect(self) -> None:
        """Disconnect, then try the gateways in turn until one resumes the session."""
        async with asyncio.timeout(RECONNECT_TIMEOUT_S):
            while True:
                await self.disconnect()
                self.gateway_index += 1
                try:
                    event = await self.connect()
                    if event["type"] == "error":
                        assert event["error"]["type"] == "server_error", event
                        self.refused_with.add(event["error"]["code"])
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
        await self.send("session.close")
        await self.wait_for("session.closed")
        await self.disconnect()

    # ------------------------------------------------------------ frames

    async def receive(self) -> JsonEvent:
        try:
            return await super().receive()
        except ConnectionClosed as closed:
            self.close_codes.add(closed.rcvd.code if closed.rcvd else 1006)
            raise

    def _apply(self, event: JsonEvent) -> None:
        assert event["event_id"] not in self.event_ids, f"duplicate event: {event}"
        self.event_ids.add(event["event_id"])
        is_outside_log = "~" in event["event_id"]  # a reply that may be repeated
        match event["type"]:
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
                assert not known or is_outside_log, f"duplicate item: {event}"
                self.item_ids += [] if known else [event["item"]["id"]]
            case "response.created":
                response = event["response"]["id"]
                assert response not in self.response_texts or self._partial == response, event
            case "response.output_text.done":
                assert self.response_texts[event["response_id"]] == event["text"], (
                    "deltas differ from text"
                )
            case "response.done":
                response = event["response"]["id"]
                assert response not in self.ended_responses, f"duplicate end: {event}"
            case _:
                pass
        super()._apply(event)

    async def synchronize(self) -> None:
        """Receive every event the server has sent so far, up to the reply to a no-op."""
        await self.send("input_audio_buffer.clear")
        await self.wait_for("input_audio_buffer.cleared")

    # ------------------------------------------------------------ conversation

    async def add_message(self, text: str, name: str = "") -> str:
        """Send a user message until it is accepted, under one item id. Returns that id."""
        name = name or f"said_{next(_names)}"
        while name not in self.item_ids:
            try:
                await self.send_message(text, name)
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
                return await super().start_response(**response)
            except DISCONNECT_ERRORS:
                before = len(self.response_texts)
                await self.reconnect()
                if len(self.response_texts) > before:
                    return next(reversed(self.response_texts))
            except RequestRefused as refused:
                await refused.back_off()

    async def wait_response(self, response: str) -> str:
        """Receive until `response` has ended, reconnecting if need be. Returns its text."""
        while True:
            try:
                return await super().wait_response(response)
            except DISCONNECT_ERRORS:
                await self.reconnect()

    async def wait_deltas(self, count: int) -> None:
        """Receive `count` text deltas, or fewer if a response ends before."""
        for _ in range(count):
            event = await self.wait_for("response.output_text.delta", "response.done")
            if event["type"] == "response.done":
                return

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

from tests.support.web_servers import KEY

Event = dict[str, Any]
WAIT_S = 60.0
"""Timeout for one event, far above the expected delay."""
GONE = (ConnectionClosed, OSError, InvalidHandshake, EOFError)
_names = itertools.count(1)


class Caller:
    """`urls`: the gateways, tried in turn on every reconnect."""

    def __init__(self, *urls: str) -> None:
        self.urls: Sequence[str] = urls
        self.turn = 0
        """Index (modulo their number) of the gateway of the next connection."""
        self.session = ""
        self.last = ""
        """Id of the last event of any type: an error event is a valid resume cursor as well."""
        self.resumed: list[str] = []
        """Outcome of each resume: `exact` or `snapshot`."""
        self.items: list[str] = []
        """Ids in the order of their `conversation.item.added` events."""
        self.said: dict[str, str] = {}
        """Text of each response: its deltas, joined."""
        self.ended: dict[str, Event] = {}
        self.ids: set[str] = set()
        self.codes: set[int] = set()
        """Codes with which the server closed connections; 1006 without a close frame."""
        self._socket: ClientConnection | None = None
        self._rebuilding = False
        self._partial: str | None = None
        """The response that was open at the last snapshot: its deltas start from the beginning."""

    # ------------------------------------------------------------ connecting

    async def connect(self, *, last: str | None = None) -> Event:
        """Connect to the next gateway, resuming if there is a session. Returns the first event."""
        url = self.urls[self.turn % len(self.urls)]
        if self.session:
            url = url.partition("?")[0]
            url += f"?session_id={self.session}&last_event_id={last or self.last}"
        self._socket = await connect(
            url,
            additional_headers={"Authorization": f"Bearer {KEY}"},
            proxy=None,
            open_timeout=WAIT_S,
            ping_interval=None,
            close_timeout=0.2,
        )
        return await self.hear()

    async def come_back(self) -> None:
        """Disconnect, then try the gateways in turn until one resumes the session."""
        async with asyncio.timeout(WAIT_S):
            while True:
                await self.drop()
                self.turn += 1
                try:
                    event = await self.connect()
                    if event["type"] == "error":
                        assert event["error"]["type"] == "server_error", event
                        await asyncio.sleep(0.05)
                        continue
                    await self.settle()
                    return
                except GONE:
                    await asyncio.sleep(0.05)

    async def drop(self) -> None:
        """Abort the connection without a close frame."""
        if self._socket is not None:
            self._socket.transport.abort()
            await self._socket.wait_closed()
            self._socket = None

    async def leave(self) -> None:
        """End the session, then disconnect."""
        await self.send(type="session.close")
        await self.until("session.closed")
        await self.drop()

    async def close_code(self) -> int:
        """Receive until the server closes. Returns its close code, 1006 if there is none."""
        try:
            while True:
                await self.hear()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

    # ------------------------------------------------------------ frames

    async def send(self, **event: Any) -> None:
        assert self._socket is not None, "not connected"
        await self._socket.send(json.dumps(event))

    async def hear(self) -> Event:
        assert self._socket is not None, "not connected"
        try:
            event: Event = json.loads(await asyncio.wait_for(self._socket.recv(), WAIT_S))
        except ConnectionClosed as closed:
            self.codes.add(closed.rcvd.code if closed.rcvd else 1006)
            raise
        assert event["event_id"] not in self.ids, f"duplicate event: {event}"
        self.ids.add(event["event_id"])
        self._apply(event, outside_log="~" in event["event_id"])
        self.last = event["event_id"]
        return event

    def _apply(self, event: Event, outside_log: bool) -> None:
        """Update the state. `outside_log`: a reply outside the event log, which may be repeated."""
        match event["type"]:
            case "session.created":
                self.session = event["session"]["id"]
            case "session.updated" if "resume" in event["session"]:
                outcome = event["session"]["resume"]["resumed"]
                self.resumed.append(outcome)
                if outcome == "snapshot":
                    self.items.clear()
                    self._partial = next((r for r in self.said if r not in self.ended), None)
            case "conversation.item.added":
                known = event["item"]["id"] in self.items
                assert not known or outside_log, f"duplicate item: {event}"
                self.items += [] if known else [event["item"]["id"]]
            case "response.created":
                response = event["response"]["id"]
                assert response not in self.said or self._partial == response, event
                self.said[response] = ""
            case "response.output_text.delta":
                self.said[event["response_id"]] += event["delta"]
            case "response.output_text.done":
                assert self.said[event["response_id"]] == event["text"], "deltas differ from text"
            case "response.done":
                response = event["response"]["id"]
                assert response not in self.ended, f"duplicate end: {event}"
                self.ended[response] = event["response"]

    async def until(self, *types: str) -> Event:
        while True:
            event = await self.hear()
            if event["type"] in types:
                return event
            if event["type"] == "error":
                raise Refused(event["error"])

    async def settle(self) -> None:
        """Receive every event the server has sent so far, up to the reply to a no-op."""
        await self.send(type="input_audio_buffer.clear")
        await self.until("input_audio_buffer.cleared")

    # ------------------------------------------------------------ conversation

    async def say(self, text: str, name: str = "") -> str:
        """Send a user message until it is accepted, under one item id. Returns that id."""
        name = name or f"said_{next(_names)}"
        while name not in self.items:
            try:
                await self.send(type="conversation.item.create", item=item(name, text))
                while name not in self.items:
                    await self.until("conversation.item.done")
            except GONE:
                await self.come_back()
            except Refused as refused:
                await refused.again()
        return name

    async def begin(self, **response: Any) -> str:
        """Request a response until it has been created. Returns its id."""
        while True:
            try:
                await self.send(type="response.create", response=response)
                created = await self.until("response.created")
                return created["response"]["id"]
            except GONE:
                before = len(self.said)
                await self.come_back()
                if len(self.said) > before:
                    return next(reversed(self.said))
            except Refused as refused:
                await refused.again()

    async def end(self, response: str) -> str:
        """Receive until `response` has ended, reconnecting if need be. Returns its text."""
        while response not in self.ended:
            try:
                await self.until("response.done")
            except GONE:
                await self.come_back()
        ended = self.ended[response]
        assert ended["status"] in ("completed", "incomplete"), ended
        return self.said[response]

    async def answer(self, **response: Any) -> str:
        return await self.end(await self.begin(**response))

    async def deltas(self, count: int) -> None:
        for _ in range(count):
            if (await self.until("response.output_text.delta", "response.done"))["type"] == (
                "response.done"
            ):
                return


class Refused(Exception):
    def __init__(self, error: Event) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.retryable = error["type"] == "server_error"

    async def again(self) -> None:
        """Wait before a retry. Raises the refusal itself if it is not retryable."""
        if not self.retryable:
            raise self
        await asyncio.sleep(0.05)


def item(name: str, text: str, role: str = "user") -> Event:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": name, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}

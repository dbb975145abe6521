"""Caller: a client that loses connections and nothing else.

It comes back after the last event it has seen, sends again what was not answered, and notices if
anything is told twice, out of order or not at all.
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
"""For one event; far more than it takes."""
GONE = (ConnectionClosed, OSError, InvalidHandshake, EOFError)
_names = itertools.count(1)


class Caller:
    """`urls`: of gateways, any of which may be asked."""

    def __init__(self, *urls: str) -> None:
        self.urls: Sequence[str] = urls
        self.turn = 0
        """Which of them is asked next."""
        self.session = ""
        self.last = ""
        """Id of the last event, whatever it was: an error is a place to come back to as well."""
        self.resumed: list[str] = []
        """How it came back, each time."""
        self.items: list[str] = []
        """In the order they were told."""
        self.said: dict[str, str] = {}
        """Deltas of each response, joined."""
        self.ended: dict[str, Event] = {}
        self.ids: set[str] = set()
        self.codes: set[int] = set()
        """Its connections were closed with, by the other side; 1006: none."""
        self._socket: ClientConnection | None = None
        self._rebuilding = False
        self._partial: str | None = None
        """The response that was being told when a snapshot came: its deltas begin anew."""

    # ------------------------------------------------------------ connecting

    async def connect(self, *, last: str | None = None) -> Event:
        """Its first event."""
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
        """As often as it takes, by turns."""
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
        """Without a word."""
        if self._socket is not None:
            self._socket.transport.abort()
            await self._socket.wait_closed()
            self._socket = None

    async def leave(self) -> None:
        """Ends the session."""
        await self.send(type="session.close")
        await self.until("session.closed")
        await self.drop()

    async def close_code(self) -> int:
        """The code the server closes with, whatever it says before; 1006: none."""
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
        assert event["event_id"] not in self.ids, f"told twice: {event}"
        self.ids.add(event["event_id"])
        self._take(event, aside="~" in event["event_id"])
        self.last = event["event_id"]
        return event

    def _take(self, event: Event, aside: bool) -> None:
        """`aside`: an answer to something, and no part of the conversation; it may come again."""
        match event["type"]:
            case "session.created":
                self.session = event["session"]["id"]
            case "session.updated" if "resume" in event["session"]:
                how = event["session"]["resume"]["resumed"]
                self.resumed.append(how)
                if how == "snapshot":
                    self.items.clear()
                    self._partial = next((r for r in self.said if r not in self.ended), None)
            case "conversation.item.added":
                known = event["item"]["id"] in self.items
                assert not known or aside, f"told twice: {event}"
                self.items += [] if known else [event["item"]["id"]]
            case "response.created":
                response = event["response"]["id"]
                assert response not in self.said or self._partial == response, event
                self.said[response] = ""
            case "response.output_text.delta":
                self.said[event["response_id"]] += event["delta"]
            case "response.output_text.done":
                assert self.said[event["response_id"]] == event["text"], "deltas are the text"
            case "response.done":
                response = event["response"]["id"]
                assert response not in self.ended, f"told twice: {event}"
                self.ended[response] = event["response"]

    async def until(self, *types: str) -> Event:
        while True:
            event = await self.hear()
            if event["type"] in types:
                return event
            if event["type"] == "error":
                raise Refused(event["error"])

    async def settle(self) -> None:
        """Everything that was to be told until now has been heard."""
        await self.send(type="input_audio_buffer.clear")
        await self.until("input_audio_buffer.cleared")

    # ------------------------------------------------------------ talking

    async def say(self, text: str, name: str = "") -> str:
        """A user's message, until it is accepted. Once, however often it is sent."""
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
        """An answer; its id."""
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
        """Its text."""
        while response not in self.ended:
            try:
                await self.until("response.done")
            except GONE:
                await self.come_back()
        how = self.ended[response]
        assert how["status"] in ("completed", "incomplete"), how
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
        """Raises what cannot be tried again."""
        if not self.retryable:
            raise self
        await asyncio.sleep(0.05)


def item(name: str, text: str, role: str = "user") -> Event:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": name, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}

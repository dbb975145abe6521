"""A client of the Realtime API that can lose its connection and resume its session."""

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

RECEIVE_S_MAX = 60.0
EventDict = dict[str, Any]


class RealtimeClient:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session_id = ""
        self.response_text = ""
        """Text received of the latest response."""
        self._last_event_id = ""

    @classmethod
    async def connect(cls, url: str) -> "RealtimeClient":
        client = cls(await connect(url, max_size=None, compression=None))
        client.session_id = (await client.receive_until("session.created"))["session"]["id"]
        return client

    async def abort(self) -> None:
        """Disconnect without a closing handshake."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def resume(self, url: str) -> EventDict:
        """Resume the session. Returns the field `session.resume` of the server's `session.updated`.

        Raises OSError or WebSocketException while no gateway accepts the connection.
        """
        query = f"session_id={self.session_id}&last_event_id={self._last_event_id}"
        self.socket = await connect(f"{url}?{query}", max_size=None, compression=None)
        return (await self.receive_until("session.updated"))["session"]["resume"]

    async def add_message(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send(type="conversation.item.create", item=item)
        await self.receive_until("conversation.item.added")

    async def create_response(self, **response: Any) -> None:
        """Request a response with these fields; its text is collected in `response_text`."""
        self.response_text = ""
        await self.send(type="response.create", response=response)

    async def send(self, **event: Any) -> None:
        await self.socket.send(json.dumps(event))

    async def receive(self) -> EventDict:
        async with asyncio.timeout(RECEIVE_S_MAX):
            event = json.loads(await self.socket.recv())
        self._last_event_id = event["event_id"]
        if event["type"] == "response.output_text.delta":
            self.response_text += event["delta"]
        return event

    async def receive_until(self, kind: str) -> EventDict:
        """Return the next event of type `kind`. Raises RuntimeError if the server sends an error
        event first."""
        while (event := await self.receive())["type"] != kind:
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
        return event

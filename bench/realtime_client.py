"""A Realtime client that talks to a real server, drops, and comes back."""

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

HEAR_S = 60.0
Event = dict[str, Any]


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session = ""
        self.text = ""
        """Of the answer that is being heard."""
        self._last = ""

    @classmethod
    async def connect(cls, url: str) -> "Client":
        client = cls(await connect(url, max_size=None, compression=None))
        client.session = (await client.until("session.created"))["session"]["id"]
        return client

    async def drop(self) -> None:
        """Without a farewell."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def come_back(self, url: str) -> Event:
        """What it is told: `resumed`, and more. Raises OSError and WebSocketException while nobody
        is there."""
        query = f"session_id={self.session}&last_event_id={self._last}"
        self.socket = await connect(f"{url}?{query}", max_size=None, compression=None)
        return (await self.until("session.updated"))["session"]["resume"]

    async def say(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send(type="conversation.item.create", item=item)
        await self.until("conversation.item.added")

    async def ask(self, **response: Any) -> None:
        """Begins an answer; `text` will be it."""
        self.text = ""
        await self.send(type="response.create", response=response)

    async def send(self, **event: Any) -> None:
        await self.socket.send(json.dumps(event))

    async def hear(self) -> Event:
        async with asyncio.timeout(HEAR_S):
            event = json.loads(await self.socket.recv())
        self._last = event["event_id"]
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        return event

    async def until(self, kind: str) -> Event:
        """Raises RuntimeError for an error."""
        while (event := await self.hear())["type"] != kind:
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
        return event

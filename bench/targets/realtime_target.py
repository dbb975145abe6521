"""A server's Realtime API, over the WebSocket.

streaming    each turn is added to the conversation of the session
no-session   the whole conversation is sent again each turn, as the input of a response that is
             out of band
"""

import json
from typing import Any

import websockets

from continuo.bench.targets.target import Ids, Output, Session, Target, Turn
from continuo.bench.targets.text_turn import ReceivedText, ToText, message

MODES = ("streaming", "no-session")


class RealtimeTarget(Target):
    """Opens a connection for each session. `url`: of the WebSocket."""

    def __init__(
        self, name: str, url: str, mode: str, to_text: ToText, *, api_key: str = "", model: str = ""
    ) -> None:
        self.name = name
        self.accepts_drafts = mode == "streaming"
        self.url = url + (f"?model={model}" if model else "")
        self._mode = mode
        self._to_text = to_text
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def open(self, scope: str) -> Session:
        socket = await websockets.connect(
            self.url, max_size=None, compression=None, additional_headers=self._headers
        )
        kind = _ResendingSession if self._mode == "no-session" else _ConversationSession
        session = kind(socket, self._to_text)
        await session.receive_until("session.created")
        await session.send(
            "session.update",
            session={"type": "realtime", "output_modalities": ["text"], "instructions": scope},
        )
        await session.receive_until("session.updated")
        return session


class _ConversationSession(Session):
    def __init__(self, socket: websockets.ClientConnection, to_text: ToText) -> None:
        self._socket = socket
        self._to_text = to_text
        self._has_draft = False

    async def draft(self, ids: Ids) -> None:
        self._has_draft = True
        await self.send("input_text_buffer.replace", text=self._to_text(ids))
        await self.receive_until("input_text_buffer.appended")

    async def turn(self, ids: Ids, output: Output) -> Turn:
        received = ReceivedText()
        await self._begin(ids, output)
        return await self._read(received)

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        text = ReceivedText()
        await self._begin(ids, output)
        item = ""
        while len(text.text) < received:
            event = await self.receive_until("response.output_text.delta")
            text.add(event["delta"])
            item = event["item_id"]
        await self.send("response.cancel")
        await self.receive_until("response.done")
        await self.send(
            "conversation.item.truncate",
            item_id=item,
            content_index=0,
            text_end=min(kept, len(text.text)),
        )
        await self.receive_until("conversation.item.truncated")

    async def close(self) -> None:
        await self._socket.close()

    async def _begin(self, ids: Ids, output: Output) -> None:
        text = self._to_text(ids)
        if self._has_draft:
            self._has_draft = False
            await self.send("input_text_buffer.replace", text=text)
            await self.send("input_text_buffer.commit")
        else:
            await self.send("conversation.item.create", item=message("user", text))
        await self.send("response.create", response=_sampling(output))

    async def _read(self, received: ReceivedText) -> Turn:
        while (event := await self._receive())["type"] != "response.done":
            if event["type"] == "response.output_text.delta":
                received.add(event["delta"])
        usage = event["response"]["usage"]
        # The item is prefilled before the response is requested, and so counts as cached.
        return received.finish(usage["input_tokens"], None, usage["output_tokens"])

    async def send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def receive_until(self, kind: str) -> dict[str, Any]:
        while (event := await self._receive())["type"] != kind:
            pass
        return event

    async def _receive(self) -> dict[str, Any]:
        event = json.loads(await self._socket.recv())
        if event["type"] == "error":
            raise RuntimeError(event["error"]["message"])
        return event


class _ResendingSession(_ConversationSession):
    def __init__(self, socket: websockets.ClientConnection, to_text: ToText) -> None:
        super().__init__(socket, to_text)
        self._history: list[dict[str, Any]] = []

    async def draft(self, ids: Ids) -> None:
        """Send nothing: the turn has all of its input."""

    async def turn(self, ids: Ids, output: Output) -> Turn:
        self._history.append(message("user", self._to_text(ids)))
        received = ReceivedText()
        response = {"conversation": "none", "input": self._history, **_sampling(output)}
        await self.send("response.create", response=response)
        turn = await self._read(received)
        self._history.append(message("assistant", received.text))
        return turn

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        turn = await self.turn(ids, output._replace(tokens=received))
        self._history[-1] = message("assistant", str(turn.output)[:kept])


def _sampling(output: Output) -> dict[str, Any]:
    return {
        "max_output_tokens": output.tokens,
        "temperature": output.temperature,
        "top_p": output.top_p,
        "ignore_eos": True,
    }

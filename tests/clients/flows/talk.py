"""One conversation, whose every frame is validated against the SDK's own types when it arrives."""
# pyright: reportMissingImports=false

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpx2Client
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from tests.clients.flows.http import Note, RecordedHttp

Event = dict[str, Any]
Transcript = list[tuple[int, str, str]]
"""(connection, "C" or "S", frame); long frames are cut."""
SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
OURS = {
    "input_text_buffer.appended": {"type", "event_id", "length"},
    "input_text_buffer.cleared": {"type", "event_id"},
    "input_text_buffer.committed": {"type", "event_id", "item_id", "previous_item_id"},
    "session.closed": {"type", "event_id", "reason"},
}
"""Events that the SDK does not know: only flows that use our additions may receive them."""
OUR_FIELDS = {
    "session.updated": {"rewind"},
    "conversation.item.added": {"rewind"},
    "conversation.item.deleted": {"rewind"},
    "conversation.item.truncated": {"text_end", "rewind"},
}
LONG: Event = {"ignore_eos": True, "max_output_tokens": 1000}
"""A response that is not over before it is cancelled."""
Flow = Callable[["Client"], Awaitable[None]]
FLOWS: dict[str, Flow] = {}
SERVERS: dict[str, str] = {}
"""Of the flows that need another server than most: which."""


def flow(run: Flow) -> Flow:
    FLOWS[run.__name__] = run
    return run


def at(server: str) -> Callable[[Flow], Flow]:
    """A flow with a server that is not like others."""

    def register(run: Flow) -> Flow:
        SERVERS[run.__name__] = server
        return flow(run)

    return register


class Recorded:
    """The WebSocket below the SDK: what goes over it, both ways, is written down."""

    def __init__(self, socket: Any, note: Note) -> None:
        self._socket = socket
        self._said = note

    async def send(self, frame: str | bytes) -> None:
        self._note("C", frame)
        await self._socket.send(frame)

    async def recv(self, **options: Any) -> str | bytes:
        try:
            frame = await self._socket.recv(**options)
        except ConnectionClosed as end:
            self._note("S", f"close {end.rcvd.code}" if end.rcvd else "gone")
            raise
        self._note("S", frame)
        return frame

    async def close(self, **options: Any) -> None:
        self._note("C", "close")
        await self._socket.close(**options)

    def _note(self, side: str, frame: str | bytes) -> None:
        self._said(side, frame.decode() if isinstance(frame, bytes) else frame)


class Talk:
    """One connection. `recv` validates what it gives."""

    def __init__(self, connection: Any, client: "Client") -> None:
        connection._connection = Recorded(connection._connection, client.exchange())
        self.connection = connection
        self.session = ""
        self.seen: set[str] = set()

    async def recv(self) -> Event:
        data = await asyncio.wait_for(self.connection.recv_bytes(), 60)
        event = json.loads(data)
        fields = OURS.get(event["type"])
        if fields is None:
            valid = SERVER_EVENT.validate_json(data)
            fields = set(type(valid).model_fields) | OUR_FIELDS.get(event["type"], set())
        assert fields >= set(event), "no field the SDK does not know"
        assert event["event_id"] not in self.seen, "event ids are unique"
        self.seen.add(event["event_id"])
        return event

    async def expect(self, *types: str) -> Event:
        """The next events are of these types; gives the last."""
        event: Event = {}
        for wanted in types:
            event = await self.recv()
            assert event["type"] == wanted, f"expected {wanted}, got {json.dumps(event)}"
        return event

    async def until(self, type: str) -> list[Event]:
        events = [await self.recv()]
        while events[-1]["type"] != type:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.recv())
        return events

    async def send(self, **event: Any) -> None:
        await self.connection.send(event)

    async def send_raw(self, frame: str | bytes) -> None:
        await self.connection._connection.send(frame)

    async def say(self, text: str, **more: Any) -> Event:
        await self.send(type="conversation.item.create", item=user(text, **more))
        added = await self.expect("conversation.item.added")
        done = await self.expect("conversation.item.done")
        assert added["item"] == done["item"]
        assert added["previous_item_id"] == done["previous_item_id"]
        return added

    async def answer(self, **response: Any) -> list[Event]:
        await self.connection.response.create(response=response)
        events = await self.until("response.done")
        assert (await self.recv())["type"] == "rate_limits.updated"
        return events

    async def ask(self, text: str, **response: Any) -> Event:
        """A whole turn; gives the finished response."""
        await self.say(text)
        return (await self.answer(**response))[-1]["response"]

    async def closed(self) -> int:
        """The code the server closes with; nothing comes before it."""
        try:
            event = await self.connection.recv_bytes()
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd else 1006
        raise AssertionError(f"still open: {event}")

    async def usable(self) -> None:
        """Whatever was, a turn works."""
        done = await self.ask("hi", max_output_tokens=2)
        assert done["status"] in ("completed", "incomplete"), done


class Client:
    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self.transcript: Transcript = []
        self._exchanges = 0

    def exchange(self) -> Note:
        """Writes down what is said on the next connection, or over HTTP from one request on."""
        self._exchanges += 1
        number = self._exchanges

        def note(side: str, said: str) -> None:
            self.transcript.append((number, side, said if len(said) < 20_000 else said[:100]))

        return note

    def api(self, key: str | None = None, **options: Any) -> AsyncOpenAI:
        """The SDK; what goes over HTTP is in the transcript."""
        http = DefaultAsyncHttpx2Client(transport=RecordedHttp(self.exchange))
        options = {"base_url": self.url, "max_retries": 0, **options}
        return AsyncOpenAI(api_key=key or self.key, http_client=http, **options)

    @asynccontextmanager
    async def talk(
        self, model: str = "demo", key: str | None = None, **query: object
    ) -> AsyncIterator[Talk]:
        realtime = self.api(key).realtime
        async with realtime.connect(model=model, extra_query=query) as connection:
            talk = Talk(connection, self)
            created = await talk.expect("session.created")
            assert created["session"]["model"] == model
            talk.session = created["session"]["id"]
            yield talk


def user(text: str, **more: Any) -> Event:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **more}


def kinds(events: list[Event]) -> list[str]:
    """The types, repeated deltas once."""
    types = [event["type"] for event in events]
    return [type for n, type in enumerate(types) if n == 0 or type != types[n - 1]]


def text_of(response: Event) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])

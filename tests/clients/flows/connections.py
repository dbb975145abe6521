"""A client of the real SDK that validates every frame against the SDK's types when it arrives."""
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

from tests.clients.flows.http import RecordedHttp, Recorder

Event = dict[str, Any]
Transcript = list[tuple[int, str, str]]
"""(connection, "C" or "S", frame); long frames are cut."""
SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
OURS = {
    "input_text_buffer.appended": {"type", "event_id", "length"},
    "input_text_buffer.cleared": {"type", "event_id"},
    "input_text_buffer.committed": {"type", "event_id", "item_id", "previous_item_id"},
    "session.closed": {"type", "event_id", "reason"},
    "response.reasoning_text.delta": {"type", "event_id", "response_id", "item_id", "delta"},
    "response.reasoning_text.done": {"type", "event_id", "response_id", "item_id", "text"},
}
"""Extension events, unknown to the SDK: only flows that use extensions may receive them."""
OUR_FIELDS = {
    "session.updated": {"rewind"},
    "conversation.item.added": {"rewind"},
    "conversation.item.deleted": {"rewind"},
    "conversation.item.truncated": {"text_end", "rewind"},
}
LONG: Event = {"ignore_eos": True, "max_output_tokens": 1000}
"""Settings of a response that does not end before it is cancelled."""
Flow = Callable[["Client"], Awaitable[None]]
FLOWS: dict[str, Flow] = {}
SERVERS: dict[str, str] = {}
"""The kind of server of each flow that needs a special one."""


def flow(run: Flow) -> Flow:
    FLOWS[run.__name__] = run
    return run


def on_server(server: str) -> Callable[[Flow], Flow]:
    """Register a flow that needs a special kind of server."""

    def register(run: Flow) -> Flow:
        SERVERS[run.__name__] = server
        return flow(run)

    return register


class RecordedSocket:
    """The WebSocket below the SDK, with a record of the frames in both directions."""

    def __init__(self, socket: Any, record: Recorder) -> None:
        self._socket = socket
        self._record_frame = record

    async def send(self, frame: str | bytes) -> None:
        self._record("C", frame)
        await self._socket.send(frame)

    async def recv(self, **options: Any) -> str | bytes:
        try:
            frame = await self._socket.recv(**options)
        except ConnectionClosed as end:
            self._record("S", f"close {end.rcvd.code}" if end.rcvd else "gone")
            raise
        self._record("S", frame)
        return frame

    async def close(self, **options: Any) -> None:
        self._record("C", "close")
        await self._socket.close(**options)

    def _record(self, side: str, frame: str | bytes) -> None:
        self._record_frame(side, frame.decode() if isinstance(frame, bytes) else frame)


class RealtimeConnection:
    """A connection of the Realtime API; `recv` validates the events."""

    def __init__(self, sdk: Any, client: "Client") -> None:
        sdk._connection = RecordedSocket(sdk._connection, client.begin_exchange())
        self.sdk = sdk
        self.session = ""
        self.seen: set[str] = set()

    async def recv(self) -> Event:
        data = await asyncio.wait_for(self.sdk.recv_bytes(), 60)
        event = json.loads(data)
        fields = OURS.get(event["type"])
        if fields is None:
            valid = SERVER_EVENT.validate_json(data)
            fields = set(type(valid).model_fields) | OUR_FIELDS.get(event["type"], set())
        assert fields >= set(event), "the event has a field that the SDK does not know"
        assert event["event_id"] not in self.seen, "event ids are unique"
        self.seen.add(event["event_id"])
        return event

    async def expect(self, *types: str) -> Event:
        """Check that the next events have these types. Returns the last one."""
        event: Event = {}
        for wanted in types:
            event = await self.recv()
            assert event["type"] == wanted, f"expected {wanted}, got {json.dumps(event)}"
        return event

    async def receive_until(self, type: str) -> list[Event]:
        events = [await self.recv()]
        while events[-1]["type"] != type:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.recv())
        return events

    async def send(self, **event: Any) -> None:
        await self.sdk.send(event)

    async def send_raw(self, frame: str | bytes) -> None:
        await self.sdk._connection.send(frame)

    async def add_message(self, text: str, **more: Any) -> Event:
        await self.send(type="conversation.item.create", item=user(text, **more))
        added = await self.expect("conversation.item.added")
        done = await self.expect("conversation.item.done")
        assert added["item"] == done["item"]
        assert added["previous_item_id"] == done["previous_item_id"]
        return added

    async def create_response(self, **response: Any) -> list[Event]:
        await self.sdk.response.create(response=response)
        events = await self.receive_until("response.done")
        assert (await self.recv())["type"] == "rate_limits.updated"
        return events

    async def run_turn(self, text: str, **response: Any) -> Event:
        """Run a whole turn. Returns the finished response."""
        await self.add_message(text)
        return (await self.create_response(**response))[-1]["response"]

    async def close_code(self) -> int:
        """Return the close code of the server, which sends no event before it."""
        try:
            event = await self.sdk.recv_bytes()
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd else 1006
        raise AssertionError(f"the connection is still open: {event}")

    async def check_usable(self) -> None:
        """Check that the connection still completes a turn."""
        done = await self.run_turn("hi", max_output_tokens=2)
        assert done["status"] in ("completed", "incomplete"), done


class Client:
    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self.transcript: Transcript = []
        self._exchanges = 0

    def begin_exchange(self) -> Recorder:
        """Begin the record of the next connection or HTTP request. Returns its recorder."""
        self._exchanges += 1
        number = self._exchanges

        def record(side: str, frame: str) -> None:
            self.transcript.append((number, side, frame if len(frame) < 20_000 else frame[:100]))

        return record

    def api(self, key: str | None = None, **options: Any) -> AsyncOpenAI:
        """Return a client of the SDK that records HTTP in the transcript."""
        http = DefaultAsyncHttpx2Client(transport=RecordedHttp(self.begin_exchange))
        options = {"base_url": self.url, "max_retries": 0, **options}
        return AsyncOpenAI(api_key=key or self.key, http_client=http, **options)

    @asynccontextmanager
    async def connect_realtime(
        self, model: str = "demo", key: str | None = None, **query: object
    ) -> AsyncIterator[RealtimeConnection]:
        realtime = self.api(key).realtime
        async with realtime.connect(model=model, extra_query=query) as sdk:
            connection = RealtimeConnection(sdk, self)
            created = await connection.expect("session.created")
            assert created["session"]["model"] == model
            connection.session = created["session"]["id"]
            yield connection


def user(text: str, **more: Any) -> Event:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **more}


def kinds(events: list[Event]) -> list[str]:
    """Return the types of the events, repeated deltas once."""
    types = [event["type"] for event in events]
    return [type for n, type in enumerate(types) if n == 0 or type != types[n - 1]]


def text_of(response: Event) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])

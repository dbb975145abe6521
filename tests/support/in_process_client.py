"""InProcessClient: a Realtime client without a network, which can resume its session."""

import asyncio
import json

from continuo.realtime.limits import Limits
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.transport import Connection
from tests.support.clients import JsonEvent, message_item
from tests.support.sockets import FakeSocket


class InProcessClient:
    """Client on a fake socket: a test decides which of the events sent the client receives.

    It resumes its session after the last event that it has received.
    """

    def __init__(self, registry: Registry, limits: Limits | None = None) -> None:
        self.registry = registry
        self.limits = limits or Limits()
        self.received: list[JsonEvent] = []
        self.socket = FakeSocket()
        self.run_task: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        return self.received[0]["session"]["id"]

    def connect(
        self, request: ResumeRequest | None = None, guest: Credentials | None = None
    ) -> None:
        self.socket = FakeSocket()
        connection = Connection(self.socket, self.registry, self.limits, "demo", guest, request)
        self.run_task = asyncio.create_task(connection.run())

    def resume(self, last: str | None = None) -> None:
        self.connect(ResumeRequest(self.session_id, last or self.received[-1]["event_id"]))

    async def disconnect(self) -> None:
        self.socket.frames.put_nowait(None)
        await self.wait_closed()

    @property
    def is_closed(self) -> bool:
        return self.run_task is not None and self.run_task.done()

    async def wait_closed(self) -> None:
        assert self.run_task is not None
        await asyncio.wait_for(self.run_task, 20)

    def receive(self, count: int | None = None) -> None:
        """Receive the first `count` events that the server has sent on this connection, or all.

        The other events are lost.
        """
        self.received += self.socket.sent[:count]

    def send_message(self, text: str, name: str = "") -> None:
        self.socket.push_event(type="conversation.item.create", item=message_item(text, name))

    def start_response(self, tokens: int) -> None:
        self.socket.push_event(type="response.create", response={"max_output_tokens": tokens})


async def connect_client(registry: Registry) -> InProcessClient:
    """Connect a client with a new session."""
    client = InProcessClient(registry)
    client.connect()
    await client.socket.wait_for("session.created")
    return client


def normalized_events(events: list[JsonEvent]) -> list[str]:
    """Serialize events to JSON lines that are the same with and without disconnections.

    Event ids and the results of resumes are left out; consecutive text deltas are joined.
    """
    lines: list[str] = []
    for event in events:
        event = {key: value for key, value in event.items() if key != "event_id"}
        if event["type"] == "session.updated" and "resume" in event["session"]:
            continue
        last = json.loads(lines[-1]) if lines else {}
        if event["type"] == last.get("type") == "response.output_text.delta":
            event["delta"] = last["delta"] + event["delta"]
            lines.pop()
        lines.append(json.dumps(event, sort_keys=True))
    return lines


def resume_result(socket: FakeSocket) -> JsonEvent:
    assert socket.sent[0]["type"] == "session.updated", socket.sent[0]
    return socket.sent[0]["session"]["resume"]

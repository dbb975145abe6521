"""ResumingClient: a client without a network that disconnects and resumes its session."""

import asyncio
import json
from typing import Any

from continuo.realtime.limits import Limits
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.transport import Connection
from tests.support.sockets import FakeSocket

JsonEvent = dict[str, Any]


class ResumingClient:
    """Client that records the events it receives and resumes its session after the last of them."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
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
        connection = Connection(self.socket, self.registry, Limits(), "demo", guest, request)
        self.run_task = asyncio.create_task(connection.run())

    def resume(self, last: str | None = None) -> None:
        self.connect(ResumeRequest(self.session_id, last or self.received[-1]["event_id"]))

    async def disconnect(self) -> None:
        self.socket.frames.put_nowait(None)
        await self.wait_closed()

    async def wait_closed(self) -> None:
        assert self.run_task is not None
        await asyncio.wait_for(self.run_task, 20)

    def receive(self, count: int | None = None) -> None:
        """Receive the first `count` events that the server has sent on this connection, or all.

        The other events are lost.
        """
        self.received += self.socket.sent[:count]

    def send_message(self, name: str, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        item = {"id": name, "type": "message", "role": "user", "content": content}
        self.socket.push_event(type="conversation.item.create", item=item)

    def start_response(self, tokens: int) -> None:
        self.socket.push_event(type="response.create", response={"max_output_tokens": tokens})


async def connect_client(registry: Registry) -> ResumingClient:
    """Connect a client with a new session."""
    client = ResumingClient(registry)
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

"""The scenario of the frozen stores: sessions with every kind of item and command, in every state a
session can be left in, and stored responses of the Responses API.

    everything   all kinds of items, tool calls, a response apart, texts in the buffer; parked
    rewound      history edited before its end: deleted, cut, inserted; parked
    forked       began as `everything` was after an item; parked
    secret       began under a client secret; parked
    cut off      a response, and one apart, under way when gateway and engine died
    closed       ended by its client      deleted   ended over HTTP
"""

import asyncio
import json
from typing import Any

from tests.frozen.virtual_server import Event, Socket, VirtualServer

SEED = 16
TOOL: Event = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def message(text: str, id: str | None = None, role: str = "user") -> Event:
    kind = "output_text" if role == "assistant" else "input_text"
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    return item if id is None else {"id": id, **item}


class Conversation:
    """The client of a session."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self._counts: dict[str, int] = {}

    async def ask(self, type: str, answer: str, **fields: Any) -> Event:
        """Send, and wait for the next event of that type."""
        self._counts[answer] = self._counts.get(answer, self._seen(answer)) + 1
        self.socket.send(type, **fields)
        return await self.socket.until(answer, self._counts[answer])

    def _seen(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.socket.events)

    async def add(self, item: Event, **fields: Any) -> Event:
        self._counts.pop("conversation.item.done", None)
        return await self.ask(
            "conversation.item.create", "conversation.item.done", item=item, **fields
        )

    async def respond(self, tokens: int, event_id: str | None = None, **response: Any) -> Event:
        self._counts.pop("response.done", None)
        named = {} if event_id is None else {"event_id": event_id}
        response = {"max_output_tokens": tokens, **response}
        done = await self.ask("response.create", "response.done", response=response, **named)
        return done["response"]

    @property
    def id(self) -> str:
        return self.socket.events[0]["session"]["id"]

    @property
    def event_ids(self) -> list[str]:
        return [event["event_id"] for event in self.socket.events]


async def begin(server: VirtualServer, query: str = "model=demo", **options: Any) -> Conversation:
    socket = server.connect("/v1/realtime", query, **options)
    await socket.until("session.created")
    return Conversation(socket)


async def everything(server: VirtualServer) -> Conversation:
    talk = await begin(server)
    session: Event = {"type": "realtime", "instructions": "Be kind. ünïcödé ✓", "tools": [TOOL]}
    await talk.ask("session.update", "session.updated", session=session, event_id="once-configure")
    await talk.add(message("the rules", "item_system", "system"))
    await talk.add(message("hello", "item_hello"))
    await talk.add(message("an id is given", None), event_id="once-item")
    await talk.respond(12, event_id="once-respond", metadata={"a": "b"})
    await talk.respond(90, tool_choice="required")
    call: Event = {"type": "function_call", "call_id": "call_given", "name": "look"}
    await talk.add({"id": "item_call", **call, "arguments": '{"city": "Rome"}'})
    result = {"type": "function_call_output", "call_id": "call_given", "output": "sunny"}
    await talk.add({"id": "item_result", **result})
    await talk.add(message("it is said to be sunny", "item_said", "assistant"))
    await talk.respond(9, temperature=0.7, seed=5, top_p=0.9, top_k=20, stop=["zzz"])
    apart = {"conversation": "none", "input": [message("beside")], "metadata": {"c": "d"}}
    await talk.respond(6, **apart)
    talk.socket.send("input_text_buffer.append", text="some words ")
    talk.socket.send("input_text_buffer.append", text="and more")
    await talk.ask("input_text_buffer.commit", "input_text_buffer.committed")
    talk.socket.send("response.create", response={"max_output_tokens": 300, "ignore_eos": True})
    await talk.socket.until("response.output_text.delta", 30)
    await talk.ask("response.cancel", "response.done", event_id="once-cancel")
    await talk.ask("input_text_buffer.clear", "input_text_buffer.cleared")
    talk.socket.send("input_text_buffer.append", text="a draft, ")
    talk.socket.send("input_text_buffer.append", text="not committed")
    await talk.ask(
        "conversation.item.retrieve", "conversation.item.retrieved", item_id="item_hello"
    )
    await talk.ask("response.cancel", "error")
    return talk


async def rewound(server: VirtualServer) -> Conversation:
    talk = await begin(server)
    for n in range(4):
        await talk.add(message(f"turn {n}", f"item_{n}"))
        done = await talk.respond(20, ignore_eos=True)
    said = done["output"][0]["id"]
    cut = {"item_id": said, "content_index": 0, "audio_end_ms": 0, "text_end": 5}
    await talk.ask("conversation.item.truncate", "conversation.item.truncated", **cut)
    await talk.ask("conversation.item.delete", "conversation.item.deleted", item_id="item_1")
    await talk.add(message("at the root", "item_root"), previous_item_id="root")
    await talk.add(message("between", "item_between"), previous_item_id="item_2")
    await talk.respond(7)
    return talk


async def under_secret(server: VirtualServer) -> Conversation:
    session = {"type": "realtime", "instructions": "From the server."}
    minted = await server.http("POST", "/v1/realtime/client_secrets", {"session": session})
    talk = await begin(server, key=json.loads(minted[4:])["value"])
    await talk.add(message("hello", "item_hello"))
    await talk.respond(8)
    return talk


async def cut_off(server: VirtualServer) -> Conversation:
    """A session in the middle of two responses."""
    talk = await begin(server)
    await talk.add(message("tell me everything", "item_all"))
    long = {"max_output_tokens": 70, "ignore_eos": True, "metadata": {"long": "yes"}}
    talk.socket.send("response.create", response=long, event_id="once-long")
    apart = {**long, "conversation": "none", "input": [message("beside", "item_beside")]}
    talk.socket.send("response.create", response=apart)
    await talk.socket.until("response.output_text.delta", 40)
    return talk


async def responses(server: VirtualServer) -> list[str]:
    """The ids of those that are stored."""

    async def create(**body: Any) -> str:
        return json.loads((await server.http("POST", "/v1/responses", body))[4:])["id"]

    first = await create(input="hello", max_output_tokens=8, instructions="Be brief.")
    second = await create(input=[message("and then?")], previous_response_id=first)
    called = await create(
        input="look there", max_output_tokens=90, tools=[TOOL], tool_choice="required",
        previous_response_id=first, metadata={"e": "f"},
    )  # fmt: skip
    gone = await create(input="delete me", max_output_tokens=3)
    await server.http("DELETE", f"/v1/responses/{gone}")
    socket = server.connect("/v1/responses")
    socket.send("response.create", model="demo", input="over a socket", max_output_tokens=20)
    done = await socket.until("response.incomplete")
    await socket.drop()
    return [first, second, called, gone, done["response"]["id"]]


async def run(server: VirtualServer) -> Event:
    """The ids that clients know afterwards: of sessions, of their events, and of responses."""
    one = await everything(server)
    two = await rewound(server)
    fork = await begin(server, f"model=demo&fork={one.id}&at=item_hello")
    await fork.add(message("another way", "item_other"))
    await fork.respond(8)
    secret = await under_secret(server)
    stored = await responses(server)
    closed = await begin(server)
    await closed.add(message("bye", "item_bye"))
    await closed.ask("session.close", "session.closed")
    deleted = await begin(server)
    await deleted.add(message("bye", "item_bye"))
    await server.http("DELETE", f"/v1/realtime/sessions/{deleted.id}")
    for talk in (one, two, fork, secret):
        await talk.socket.drop()
    last = await cut_off(server)
    sessions = {
        "everything": one,
        "rewound": two,
        "forked": fork,
        "secret": secret,
        "cut off": last,
        "closed": closed,
        "deleted": deleted,
    }
    return {
        "sessions": {name: [talk.id, *talk.event_ids] for name, talk in sessions.items()},
        "responses": stored,
    }


# ---------------------------------------------------------------- later, on a frozen store


async def resumed(server: VirtualServer, session: str, after: str) -> list[Event]:
    """All events sent to a client that resumes after an event id, repeats two earlier requests, and
    has one more turn."""
    socket = server.resume(session, after)
    await asyncio.sleep(60.0)
    if socket.closed is None:
        session_update = {"type": "realtime", "instructions": "other words"}
        socket.send("session.update", session=session_update, event_id="once-configure")
        socket.send(
            "conversation.item.create", item=message("an id is given"), event_id="once-item"
        )
        socket.send("conversation.item.create", item=message("one more", "item_more"))
        socket.send("response.create", response={"max_output_tokens": 10})
        await asyncio.sleep(60.0)
        socket.send("input_text_buffer.commit")
        await asyncio.sleep(5.0)
        await socket.drop()
    return [*socket.events, {"closed": socket.closed}]


async def continued(server: VirtualServer, response: str) -> list[str]:
    """A stored response: itself, its events, and the next one."""
    path = f"/v1/responses/{response}"
    body = {"input": "go on", "previous_response_id": response, "max_output_tokens": 10}
    return [
        await server.http("GET", path),
        await server.http("GET", path, query="stream=true"),
        await server.http("POST", "/v1/responses", body),
    ]

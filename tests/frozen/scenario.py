"""The scenario of the frozen stores: sessions with every kind of item and command, in every state
of a stored session, and stored responses of the Responses API.

    everything   all kinds of items, tool calls, an out-of-band response, text in the buffer; parked
    rewound      history edited before its end: deleted, truncated, inserted; parked
    forked       forked from `everything` after an item; parked
    secret       opened with a client secret; parked
    cut off      a response, and an out-of-band one, in progress when gateway and engine died
    closed       closed by its client      deleted   deleted over HTTP
"""

import asyncio
import json
import secrets
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


class SessionClient:
    """The client of a session."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self._counts: dict[str, int] = {}

    async def request(self, type: str, reply_type: str, **fields: Any) -> Event:
        """Send an event and wait for the next event of type `reply_type`."""
        self._counts[reply_type] = self._counts.get(reply_type, self._count_of(reply_type)) + 1
        self.socket.send(type, **fields)
        return await self.socket.wait_for(reply_type, self._counts[reply_type])

    def _count_of(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.socket.events)

    async def add(self, item: Event, **fields: Any) -> Event:
        self._counts.pop("conversation.item.done", None)
        return await self.request(
            "conversation.item.create", "conversation.item.done", item=item, **fields
        )

    async def respond(self, tokens: int, event_id: str | None = None, **response: Any) -> Event:
        self._counts.pop("response.done", None)
        key = {} if event_id is None else {"event_id": event_id}
        response = {"max_output_tokens": tokens, **response}
        done = await self.request("response.create", "response.done", response=response, **key)
        return done["response"]

    @property
    def id(self) -> str:
        return self.socket.events[0]["session"]["id"]

    @property
    def event_ids(self) -> list[str]:
        return [event["event_id"] for event in self.socket.events]


async def open_session(
    server: VirtualServer, query: str = "model=demo", **options: Any
) -> SessionClient:
    socket = server.connect("/v1/realtime", query, **options)
    await socket.wait_for("session.created")
    return SessionClient(socket)


async def everything(server: VirtualServer) -> SessionClient:
    client = await open_session(server)
    session: Event = {"type": "realtime", "instructions": "Be kind. ünïcödé ✓", "tools": [TOOL]}
    await client.request(
        "session.update", "session.updated", session=session, event_id="once-configure"
    )
    await client.add(message("the rules", "item_system", "system"))
    await client.add(message("hello", "item_hello"))
    await client.add(message("an id is given", None), event_id="once-item")
    await client.respond(12, event_id="once-respond", metadata={"a": "b"})
    await client.respond(90, tool_choice="required")
    call: Event = {"type": "function_call", "call_id": "call_given", "name": "look"}
    await client.add({"id": "item_call", **call, "arguments": '{"city": "Rome"}'})
    result = {"type": "function_call_output", "call_id": "call_given", "output": "sunny"}
    await client.add({"id": "item_result", **result})
    await client.add(message("it is said to be sunny", "item_said", "assistant"))
    await client.respond(9, temperature=0.7, seed=5, top_p=0.9, top_k=20, stop=["zzz"])
    out_of_band = {"conversation": "none", "input": [message("beside")], "metadata": {"c": "d"}}
    await client.respond(6, **out_of_band)
    client.socket.send("input_text_buffer.append", text="some words ")
    client.socket.send("input_text_buffer.append", text="and more")
    await client.request("input_text_buffer.commit", "input_text_buffer.committed")
    client.socket.send("response.create", response={"max_output_tokens": 300, "ignore_eos": True})
    await client.socket.wait_for("response.output_text.delta", 30)
    await client.request("response.cancel", "response.done", event_id="once-cancel")
    await client.request("input_text_buffer.clear", "input_text_buffer.cleared")
    client.socket.send("input_text_buffer.append", text="a draft, ")
    client.socket.send("input_text_buffer.append", text="not committed")
    await client.request(
        "conversation.item.retrieve", "conversation.item.retrieved", item_id="item_hello"
    )
    await client.request("response.cancel", "error")
    return client


async def rewound(server: VirtualServer) -> SessionClient:
    client = await open_session(server)
    for n in range(4):
        await client.add(message(f"turn {n}", f"item_{n}"))
        done = await client.respond(20, ignore_eos=True)
    message_id = done["output"][0]["id"]
    truncation = {"item_id": message_id, "content_index": 0, "audio_end_ms": 0, "text_end": 5}
    await client.request("conversation.item.truncate", "conversation.item.truncated", **truncation)
    await client.request("conversation.item.delete", "conversation.item.deleted", item_id="item_1")
    await client.add(message("at the root", "item_root"), previous_item_id="root")
    await client.add(message("between", "item_between"), previous_item_id="item_2")
    await client.respond(7)
    return client


async def under_secret(server: VirtualServer) -> SessionClient:
    session = {"type": "realtime", "instructions": "From the server."}
    minted = await server.request("POST", "/v1/realtime/client_secrets", {"session": session})
    secrets.token_bytes(12)  # drawn by a secret when the stores were frozen
    client = await open_session(server, key=json.loads(minted[4:])["value"])
    await client.add(message("hello", "item_hello"))
    await client.respond(8)
    return client


async def cut_off(server: VirtualServer) -> SessionClient:
    """A session with two responses in progress."""
    client = await open_session(server)
    await client.add(message("tell me everything", "item_all"))
    long = {"max_output_tokens": 70, "ignore_eos": True, "metadata": {"long": "yes"}}
    client.socket.send("response.create", response=long, event_id="once-long")
    out_of_band = {**long, "conversation": "none", "input": [message("beside", "item_beside")]}
    client.socket.send("response.create", response=out_of_band)
    await client.socket.wait_for("response.output_text.delta", 40)
    return client


async def responses(server: VirtualServer) -> list[str]:
    """Create stored responses. Returns their ids."""

    async def create(**body: Any) -> str:
        return json.loads((await server.request("POST", "/v1/responses", body))[4:])["id"]

    first = await create(input="hello", max_output_tokens=8, instructions="Be brief.")
    second = await create(input=[message("and then?")], previous_response_id=first)
    called = await create(
        input="look there", max_output_tokens=90, tools=[TOOL], tool_choice="required",
        previous_response_id=first, metadata={"e": "f"},
    )  # fmt: skip
    deleted = await create(input="delete me", max_output_tokens=3)
    await server.request("DELETE", f"/v1/responses/{deleted}")
    socket = server.connect("/v1/responses")
    socket.send("response.create", model="demo", input="over a socket", max_output_tokens=20)
    done = await socket.wait_for("response.incomplete")
    await socket.disconnect()
    return [first, second, called, deleted, done["response"]["id"]]


async def run(server: VirtualServer) -> Event:
    """Run the scenario. Returns the ids that clients know: of sessions, their events, responses."""
    full = await everything(server)
    edited = await rewound(server)
    fork = await open_session(server, f"model=demo&fork={full.id}&at=item_hello")
    await fork.add(message("another way", "item_other"))
    await fork.respond(8)
    secret = await under_secret(server)
    stored = await responses(server)
    closed = await open_session(server)
    await closed.add(message("bye", "item_bye"))
    await closed.request("session.close", "session.closed")
    deleted = await open_session(server)
    await deleted.add(message("bye", "item_bye"))
    await server.request("DELETE", f"/v1/realtime/sessions/{deleted.id}")
    for client in (full, edited, fork, secret):
        await client.socket.disconnect()
    interrupted = await cut_off(server)
    sessions = {
        "everything": full,
        "rewound": edited,
        "forked": fork,
        "secret": secret,
        "cut off": interrupted,
        "closed": closed,
        "deleted": deleted,
    }
    return {
        "sessions": {name: [client.id, *client.event_ids] for name, client in sessions.items()},
        "responses": stored,
    }


# ---------------------------------------------------------------- later, on a frozen store


async def resumed(server: VirtualServer, session: str, after: str) -> list[Event]:
    """Resume a session after an event id, repeat two earlier requests, and run one more turn.

    Returns all events that the client receives.
    """
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
        await socket.disconnect()
    return [*socket.events, {"closed": socket.closed}]


async def continued(server: VirtualServer, response: str) -> list[str]:
    """Retrieve a stored response, its events, and a response that continues from it."""
    path = f"/v1/responses/{response}"
    body = {"input": "go on", "previous_response_id": response, "max_output_tokens": 10}
    return [
        await server.request("GET", path),
        await server.request("GET", path, query="stream=true"),
        await server.request("POST", "/v1/responses", body),
    ]

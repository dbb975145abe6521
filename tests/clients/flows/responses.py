"""The Responses API over a WebSocket: `client.responses.connect()`."""
# pyright: reportMissingImports=false

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter, ValidationError
from websockets.exceptions import ConnectionClosed

from tests.clients.flows.talk import LONG, Client, Event, Recorded, flow, kinds, text_of

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
CANCELLED, STEERED = b'"reason":"cancelled"', b'"reason":"steered"'
"""Clients expect the first after `response.cancel`, which the SDK does not know; it knows the other
of the kind."""
OUR_FIELDS = {"response.function_call_arguments.done": {"name"}}
"""Over HTTP the SDK knows it."""
ENDS = ("response.completed", "response.incomplete", "response.failed")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}

NOTE = "all is well " * 200
TAKE_NOTE = {
    "type": "function",
    "name": "take_note",
    "parameters": {
        "type": "object",
        "properties": {"note": {"enum": [NOTE]}},
        "required": ["note"],
        "additionalProperties": False,
    },
    "strict": True,
}
"""A call of it takes a while."""


class Call:
    """One connection. `recv` validates what it gives."""

    def __init__(self, connection: Any, client: Client) -> None:
        connection._connection = Recorded(connection._connection, client.exchange())
        self.connection = connection

    async def create(self, **fields: Any) -> None:
        await self.connection.response.create(model="demo", **fields)

    async def recv(self) -> Event:
        data = await asyncio.wait_for(self.connection.recv_bytes(), 60)
        event = json.loads(data)
        try:
            valid = SERVER_EVENT.validate_json(data.replace(CANCELLED, STEERED))
        except ValidationError as error:
            raise AssertionError(f"not of the SDK: {data[:2000]!r}") from error
        fields = set(type(valid).model_fields) | OUR_FIELDS.get(event["type"], set())
        assert fields >= set(event), "no field the SDK does not know"
        return event

    async def end(self, *kinds: str) -> list[Event]:
        """The events of a response to its end, without a gap in their numbers."""
        events = [await self.recv()]
        while events[-1]["type"] not in (kinds or ENDS):
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.recv())
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
        return events

    async def turn(self, text: str | None = None, /, **fields: Any) -> Event:
        if text is not None:
            fields["input"] = text
        await self.create(**{"max_output_tokens": 24, **fields})
        return (await self.end())[-1]["response"]

    async def refused(self, code: str, status: int = 400, **fields: Any) -> None:
        await self.create(**fields)
        event = await self.recv()
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)

    async def closed(self) -> int:
        """The code the server closes with, 1006 without one; nothing comes before it."""
        try:
            event = await asyncio.wait_for(self.connection.recv_bytes(), 60)
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd else 1006
        raise AssertionError(f"still open: {event}")

    async def usable(self) -> None:
        assert (await self.turn("hi"))["status"] in ("completed", "incomplete")


@asynccontextmanager
async def call(client: Client) -> AsyncIterator[Call]:
    async with client.api().responses.connect() as connection:
        yield Call(connection, client)


def cached(response: Event) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]


@flow
async def a_response_in_canonical_order(client: Client) -> None:
    async with call(client) as line:
        await line.create(input="hello", instructions="Be kind.", metadata={"turn": "1"})
        events = await line.end()
        assert kinds(events) == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ], kinds(events)
        assert events[0]["sequence_number"] == 0
        response = events[-1]["response"]
        assert "".join(event.get("delta", "") for event in events) == text_of(response)
        assert (response["metadata"], response["instructions"]) == ({"turn": "1"}, "Be kind.")


@flow
async def responses_go_on_from_each_other(client: Client) -> None:
    async with call(client) as line:
        response = await line.turn("My name is Ada. Remember it.")
        first = response
        for text in ("What is the capital of France?", "And of Italy?", "Thank you."):
            before = response["usage"]["total_tokens"]
            response = await line.turn(text, previous_response_id=response["id"])
            assert cached(response) >= before - 1, "only what is new is computed"
        other = await line.turn("What is my name?", previous_response_id=first["id"])
        assert cached(other) >= first["usage"]["total_tokens"] - 1, "a fork shares KV"


@flow
async def a_stored_response_goes_on_over_another_connection(client: Client) -> None:
    async with call(client) as line:
        kept = await line.turn("hello")
        alone = await line.turn("hello", store=False)
        await line.turn("and?", previous_response_id=alone["id"], store=False)
    async with call(client) as line:
        response = await line.turn("and?", previous_response_id=kept["id"])
        assert cached(response) >= kept["usage"]["total_tokens"] - 1
        await line.refused(
            "previous_response_not_found", input="x", previous_response_id=alone["id"]
        )
        await line.usable()


@flow
async def a_warm_up_is_prefilled(client: Client) -> None:
    async with call(client) as line:
        wish: Event = {"instructions": "Be brief. " * 20, "tools": [WEATHER]}
        for said in ([], "Hello there."):
            await line.create(input=said, generate=False, previous_response_id=None, **wish)
            events = await line.end()
            assert kinds(events) == [
                "response.created",
                "response.in_progress",
                "response.completed",
            ]
            warm = events[-1]["response"]
            assert warm["output"] == []
            assert warm["usage"]["input_tokens"] > 0, "instructions and tools at least"
            response = await line.turn("hello", previous_response_id=warm["id"], **wish)
            assert response["usage"]["input_tokens"] > warm["usage"]["input_tokens"]
            assert cached(response) >= warm["usage"]["input_tokens"], "it was in KV"


@flow
async def lanes_beside_each_other(client: Client) -> None:
    async with call(client) as line:
        first = await line.turn("hello")
        lanes = ("a", "b", "c")
        for lane in lanes:
            await line.create(
                input=f"Tell me about {lane}.",
                previous_response_id=first["id"],
                stream_id=lane,
                max_output_tokens=12,
            )
        events: dict[str, list[Event]] = {lane: [] for lane in lanes}
        while sum(lane[-1]["type"] in ENDS for lane in events.values() if lane) < len(lanes):
            event = await line.recv()
            events[event["stream_id"]].append(event)
        for lane in events.values():
            assert [event["sequence_number"] for event in lane] == list(range(len(lane)))
        await line.create(input="one", stream_id="a", max_output_tokens=4)
        await line.create(input="two", stream_id="a", max_output_tokens=4)
        one, two = (await line.end())[0]["response"], (await line.end())[0]["response"]
        assert one["id"] != two["id"], "one after the other"


@flow
async def a_response_is_cancelled(client: Client) -> None:
    async with call(client) as line:
        asked = {"input": "hello", "instructions": "Be kind."}
        await line.connection.send({"type": "response.create", **asked, **LONG})
        id = (await line.end("response.output_text.delta"))[0]["response"]["id"]
        await line.connection.send({"type": "response.cancel", "response_id": id})
        ended = (await line.end())[-1]
        assert ended["type"] == "response.incomplete"
        assert ended["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert (await line.turn("and?", previous_response_id=id))["previous_response_id"] == id


@flow
async def a_response_is_steered(client: Client) -> None:
    async with call(client) as line:
        await line.connection.send({"type": "response.create", "input": "hello", **LONG})
        id = (await line.end("response.output_text.delta"))[0]["response"]["id"]
        steer = [{"role": "user", "content": "Rather say goodbye."}]
        await line.connection.response.steer(previous_response_id=id, input=steer)
        events = await line.end()
        [accepted] = [event for event in events if event["type"] == "response.steer.accepted"]
        assert accepted["steer"]["previous_response_id"] == id
        assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
        created = (await line.end("response.output_text.delta"))[0]
        assert created["response"]["previous_response_id"] == id
        await line.connection.send({"type": "response.cancel"})
        await line.end()
        await line.connection.response.steer(previous_response_id=id, input="too late")
        failed = await line.recv()
        assert failed["error"]["code"] == "response_already_completed"
        assert failed["steer"]["input"] == "too late"
        await line.usable()


@flow
async def a_response_calls_a_tool(client: Client) -> None:
    async with call(client) as line:
        skipped: Any = {"type": "web_search"}
        wish: Event = {"tools": [WEATHER, skipped]}
        await line.create(input="What is the weather in Rome?", **wish)
        events = await line.end()
        assert kinds(events) == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ], kinds(events)
        response = events[-1]["response"]
        (called,) = response["output"]
        assert (called["name"], json.loads(called["arguments"])) == (
            "get_weather",
            {"city": "Rome"},
        )
        output = {
            "type": "function_call_output",
            "call_id": called["call_id"],
            "output": json.dumps({"condition": "sunny", "temperature": 21}),
        }
        done = await line.turn(
            input=[output], previous_response_id=response["id"], max_output_tokens=60, **wish
        )
        assert "21" in text_of(done) or "sunny" in text_of(done), text_of(done)
        assert cached(done) >= response["usage"]["total_tokens"] - 1, "its KV stayed warm"


@flow
async def steering_waits_for_what_a_call_gives(client: Client) -> None:
    """More is said while the model calls a tool, with much to say: it is not torn from its call."""
    async with call(client) as line:
        wish: Event = {"tools": [TAKE_NOTE]}
        await line.create(input="Take a note.", tool_choice="required", **wish)
        id = (await line.end("response.function_call_arguments.delta"))[0]["response"]["id"]
        await line.connection.response.steer(previous_response_id=id, input="In one word.")
        events = await line.end()
        assert any(event["type"] == "response.steer.accepted" for event in events)
        events.append(await line.recv())
        assert events[-1]["type"] == "response.steer.pending"
        (owed,) = events[-1]["required_input"]
        assert (owed["type"], owed["name"]) == ("function_call_output", "take_note")
        done = await line.turn(input=[{**owed, "output": "taken"}], previous_response_id=id, **wish)
        assert done["previous_response_id"] == id
        longer = await line.turn(input="so?", previous_response_id=id, **wish)
        assert longer["usage"]["input_tokens"] < done["usage"]["input_tokens"], (
            "the input that waited went in once"
        )


@flow
async def what_cannot_steer_comes_back(client: Client) -> None:
    async with call(client) as line:
        steer = line.connection.response.steer

        async def failed(count: int = 1) -> list[str]:
            """Of so many; what is said meanwhile is of no interest."""
            codes: list[str] = []
            while len(codes) < count:
                event = await line.recv()
                if event["type"] == "response.steer.failed":
                    codes.append(event["error"]["code"])
            return codes

        await line.connection.send({"type": "response.create", "input": "hello", **LONG})
        id = (await line.end("response.output_text.delta"))[0]["response"]["id"]
        await steer(previous_response_id="resp_no", input="x")
        assert await failed() == ["response_not_found"]
        image = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}
        message = {"type": "message", "role": "user", "content": [image]}
        await steer(previous_response_id=id, input=[message])
        assert await failed() == ["invalid_input"]
        await steer(previous_response_id=id, input="word " * 5000)
        assert await failed() == ["successor_creation_failed"]
        await steer(previous_response_id=id, input="x")
        assert await failed() == ["response_already_completed"]
        await line.create(input="Take a note.", tool_choice="required", tools=[TAKE_NOTE])
        events = await line.end("response.function_call_arguments.delta")
        id = events[0]["response"]["id"]
        for _ in range(17):
            await steer(previous_response_id=id, input="In one word.")
        assert await failed() == ["too_many_pending_steers"]
        await line.connection.send({"type": "response.cancel", "response_id": id})
        assert await failed(16) == ["response_not_active"] * 16
        await line.usable()


@flow
async def lanes_have_a_bound(client: Client) -> None:
    async with call(client) as line:
        first = {"type": "response.create", "input": "hello", "stream_id": "lane 0", **LONG}
        await line.connection.send(first)
        id = (await line.end("response.output_text.delta"))[0]["response"]["id"]
        wish: Event = {"previous_response_id": id, "input": "and?", "max_output_tokens": 1}
        for n in range(1, 33):  # they wait for the first
            await line.create(stream_id=f"lane {n}", **wish)
        ended: set[str] = set()
        while len(ended) < 32:
            event = await line.recv()
            if event["type"] in ENDS:
                ended.add(event["stream_id"])
            if event["type"] == "error":
                assert event["error"]["code"] == "websocket_stream_limit_reached"
                assert (event["status"], event["stream_id"]) == (400, "lane 32")
                await line.connection.send({"type": "response.cancel", "response_id": id})
        assert ended == {f"lane {n}" for n in range(32)}
        await line.usable()


@flow
async def refused_responses_leave_the_connection_good(client: Client) -> None:
    async with call(client) as line:
        await line.refused("previous_response_not_found", input="x", previous_response_id="resp_no")
        await line.refused("context_length_exceeded", input="word " * 5000)
        await line.refused("invalid_value", input=[{"type": "computer_call"}])
        await line.refused("decimal_above_max_value", input="x", temperature=3)
        await line.connection.send_raw("{")
        assert (await line.recv())["error"]["code"] == "invalid_json"
        await line.connection.send({"type": "response.cancel", "response_id": "resp_no"})
        assert (await line.recv())["error"]["code"] == "response_not_active"
        await line.usable()


@flow
async def what_agents_send_unasked_is_accepted(client: Client) -> None:
    async with call(client) as line:
        response = await line.turn(
            input=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "hello"},
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "1"},
            ],
            stream=True,
            background=False,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low"},
            prompt_cache_key="thread",
            service_tier="auto",
            text={"verbosity": "low"},
            parallel_tool_calls=True,
            temperature=0.0,
            top_p=1.0,
            truncation="auto",
            tools=[
                {"type": "namespace", "name": "n", "description": "", "tools": []},
                {"type": "web_search"},
            ],
        )
        assert response["tools"] == []
        reference = [{"type": "item_reference", "id": "fco_1"}, {"role": "user", "content": "so?"}]
        more = {"previous_response_id": response["id"], "client_metadata": {"thread": "1"}}
        await line.connection.send({"type": "response.create", "input": reference, **more})
        await line.end()


@flow
async def a_responses_text_follows_a_schema(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    async with call(client) as line:
        format = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
        response = await line.turn(
            "Where is the Colosseum?", text={"format": format}, max_output_tokens=60
        )
        assert json.loads(text_of(response))["city"] in ("Rome", "Paris")
        assert response["text"]["format"]["name"] == "city"

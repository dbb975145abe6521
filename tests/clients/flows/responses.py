"""Flows of the Responses API over a WebSocket: `client.responses.connect()`."""
# pyright: reportMissingImports=false

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter, ValidationError
from websockets.exceptions import ConnectionClosed

from tests.clients.flows.connections import (
    LONG,
    Client,
    Event,
    RecordedSocket,
    flow,
    kinds,
    text_of,
)

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
CANCELLED, STEERED = b'"reason":"cancelled"', b'"reason":"steered"'
"""Clients expect the first reason after `response.cancel`; the SDK knows only the second."""
OUR_FIELDS = {"response.function_call_arguments.done": {"name"}}
"""The SDK knows this field over HTTP only."""
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
"""A tool whose call takes a while to generate."""


class ResponsesConnection:
    """A connection of the Responses API; `recv` validates the events."""

    def __init__(self, sdk: Any, client: Client) -> None:
        sdk._connection = RecordedSocket(sdk._connection, client.begin_exchange())
        self.sdk = sdk

    async def create(self, **fields: Any) -> None:
        await self.sdk.response.create(model="demo", **fields)

    async def recv(self) -> Event:
        data = await asyncio.wait_for(self.sdk.recv_bytes(), 60)
        event = json.loads(data)
        try:
            valid = SERVER_EVENT.validate_json(data.replace(CANCELLED, STEERED))
        except ValidationError as error:
            raise AssertionError(f"no event of the SDK: {data[:2000]!r}") from error
        fields = set(type(valid).model_fields) | OUR_FIELDS.get(event["type"], set())
        assert fields >= set(event), "the event has a field that the SDK does not know"
        return event

    async def receive_until(self, *kinds: str) -> list[Event]:
        """Return the events up to one of `kinds`, or to the end; their numbers have no gap."""
        events = [await self.recv()]
        while events[-1]["type"] not in (kinds or ENDS):
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.recv())
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
        return events

    async def run_turn(self, text: str | None = None, /, **fields: Any) -> Event:
        if text is not None:
            fields["input"] = text
        await self.create(**{"max_output_tokens": 24, **fields})
        return (await self.receive_until())[-1]["response"]

    async def check_refused(self, code: str, status: int = 400, **fields: Any) -> None:
        await self.create(**fields)
        event = await self.recv()
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)

    async def close_code(self) -> int:
        """Return the close code, 1006 if there is none; the server sends no event before it."""
        try:
            event = await asyncio.wait_for(self.sdk.recv_bytes(), 60)
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd else 1006
        raise AssertionError(f"the connection is still open: {event}")

    async def check_usable(self) -> None:
        assert (await self.run_turn("hi"))["status"] in ("completed", "incomplete")


@asynccontextmanager
async def connect_responses(client: Client) -> AsyncIterator[ResponsesConnection]:
    async with client.api().responses.connect() as sdk:
        yield ResponsesConnection(sdk, client)


def cached(response: Event) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]


@flow
async def a_response_in_canonical_order(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.create(input="hello", instructions="Be kind.", metadata={"turn": "1"})
        events = await connection.receive_until()
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
    async with connect_responses(client) as connection:
        response = await connection.run_turn("My name is Ada. Remember it.")
        first = response
        for text in ("What is the capital of France?", "And of Italy?", "Thank you."):
            before = response["usage"]["total_tokens"]
            response = await connection.run_turn(text, previous_response_id=response["id"])
            assert cached(response) >= before - 1, "only the new input is computed"
        other = await connection.run_turn("What is my name?", previous_response_id=first["id"])
        assert cached(other) >= first["usage"]["total_tokens"] - 1, "a fork shares KV"


@flow
async def a_stored_response_goes_on_over_another_connection(client: Client) -> None:
    async with connect_responses(client) as connection:
        kept = await connection.run_turn("hello")
        alone = await connection.run_turn("hello", store=False)
        await connection.run_turn("and?", previous_response_id=alone["id"], store=False)
    async with connect_responses(client) as connection:
        response = await connection.run_turn("and?", previous_response_id=kept["id"])
        assert cached(response) >= kept["usage"]["total_tokens"] - 1
        await connection.check_refused(
            "previous_response_not_found", input="x", previous_response_id=alone["id"]
        )
        await connection.check_usable()


@flow
async def a_warm_up_is_prefilled(client: Client) -> None:
    async with connect_responses(client) as connection:
        fields: Event = {"instructions": "Be brief. " * 20, "tools": [WEATHER]}
        for input in ([], "Hello there."):
            await connection.create(
                input=input, generate=False, previous_response_id=None, **fields
            )
            events = await connection.receive_until()
            assert kinds(events) == [
                "response.created",
                "response.in_progress",
                "response.completed",
            ]
            warm = events[-1]["response"]
            assert warm["output"] == []
            assert warm["usage"]["input_tokens"] > 0, "instructions and tools at least"
            response = await connection.run_turn("hello", previous_response_id=warm["id"], **fields)
            assert response["usage"]["input_tokens"] > warm["usage"]["input_tokens"]
            assert cached(response) >= warm["usage"]["input_tokens"], "the warm-up was in KV"


@flow
async def lanes_beside_each_other(client: Client) -> None:
    async with connect_responses(client) as connection:
        first = await connection.run_turn("hello")
        stream_ids = ("a", "b", "c")
        for stream_id in stream_ids:
            await connection.create(
                input=f"Tell me about {stream_id}.",
                previous_response_id=first["id"],
                stream_id=stream_id,
                max_output_tokens=12,
            )
        streams: dict[str, list[Event]] = {stream_id: [] for stream_id in stream_ids}
        while sum(events[-1]["type"] in ENDS for events in streams.values() if events) < 3:
            event = await connection.recv()
            streams[event["stream_id"]].append(event)
        for events in streams.values():
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
        await connection.create(input="one", stream_id="a", max_output_tokens=4)
        await connection.create(input="two", stream_id="a", max_output_tokens=4)
        one = (await connection.receive_until())[0]["response"]
        two = (await connection.receive_until())[0]["response"]
        assert one["id"] != two["id"], "responses of one stream run one after the other"


@flow
async def a_response_is_cancelled(client: Client) -> None:
    async with connect_responses(client) as connection:
        request = {"input": "hello", "instructions": "Be kind."}
        await connection.sdk.send({"type": "response.create", **request, **LONG})
        id = (await connection.receive_until("response.output_text.delta"))[0]["response"]["id"]
        await connection.sdk.send({"type": "response.cancel", "response_id": id})
        ended = (await connection.receive_until())[-1]
        assert ended["type"] == "response.incomplete"
        assert ended["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert (await connection.run_turn("and?", previous_response_id=id))[
            "previous_response_id"
        ] == id


@flow
async def a_response_is_steered(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.sdk.send({"type": "response.create", "input": "hello", **LONG})
        id = (await connection.receive_until("response.output_text.delta"))[0]["response"]["id"]
        steer = [{"role": "user", "content": "Rather say goodbye."}]
        await connection.sdk.response.steer(previous_response_id=id, input=steer)
        events = await connection.receive_until()
        [accepted] = [event for event in events if event["type"] == "response.steer.accepted"]
        assert accepted["steer"]["previous_response_id"] == id
        assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
        created = (await connection.receive_until("response.output_text.delta"))[0]
        assert created["response"]["previous_response_id"] == id
        await connection.sdk.send({"type": "response.cancel"})
        await connection.receive_until()
        await connection.sdk.response.steer(previous_response_id=id, input="too late")
        failed = await connection.recv()
        assert failed["error"]["code"] == "response_already_completed"
        assert failed["steer"]["input"] == "too late"
        await connection.check_usable()


@flow
async def a_response_calls_a_tool(client: Client) -> None:
    async with connect_responses(client) as connection:
        skipped: Any = {"type": "web_search"}
        fields: Event = {"tools": [WEATHER, skipped]}
        await connection.create(input="What is the weather in Rome?", **fields)
        events = await connection.receive_until()
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
        done = await connection.run_turn(
            input=[output], previous_response_id=response["id"], max_output_tokens=60, **fields
        )
        assert "21" in text_of(done) or "sunny" in text_of(done), text_of(done)
        assert cached(done) >= response["usage"]["total_tokens"] - 1, "its KV stayed warm"


@flow
async def steering_waits_for_what_a_call_gives(client: Client) -> None:
    """Steering during a long tool call waits for the output of the call."""
    async with connect_responses(client) as connection:
        fields: Event = {"tools": [TAKE_NOTE]}
        await connection.create(input="Take a note.", tool_choice="required", **fields)
        started = await connection.receive_until("response.function_call_arguments.delta")
        id = started[0]["response"]["id"]
        await connection.sdk.response.steer(previous_response_id=id, input="In one word.")
        events = await connection.receive_until()
        assert any(event["type"] == "response.steer.accepted" for event in events)
        events.append(await connection.recv())
        assert events[-1]["type"] == "response.steer.pending"
        (owed,) = events[-1]["required_input"]
        assert (owed["type"], owed["name"]) == ("function_call_output", "take_note")
        done = await connection.run_turn(
            input=[{**owed, "output": "taken"}], previous_response_id=id, **fields
        )
        assert done["previous_response_id"] == id
        longer = await connection.run_turn(input="so?", previous_response_id=id, **fields)
        assert longer["usage"]["input_tokens"] < done["usage"]["input_tokens"], (
            "the pending input was added once"
        )


@flow
async def what_cannot_steer_comes_back(client: Client) -> None:
    async with connect_responses(client) as connection:
        steer = connection.sdk.response.steer

        async def failed(count: int = 1) -> list[str]:
            """Return the codes of the next `count` failed steers, skipping other events."""
            codes: list[str] = []
            while len(codes) < count:
                event = await connection.recv()
                if event["type"] == "response.steer.failed":
                    codes.append(event["error"]["code"])
            return codes

        await connection.sdk.send({"type": "response.create", "input": "hello", **LONG})
        id = (await connection.receive_until("response.output_text.delta"))[0]["response"]["id"]
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
        await connection.create(input="Take a note.", tool_choice="required", tools=[TAKE_NOTE])
        events = await connection.receive_until("response.function_call_arguments.delta")
        id = events[0]["response"]["id"]
        for _ in range(17):
            await steer(previous_response_id=id, input="In one word.")
        assert await failed() == ["too_many_pending_steers"]
        await connection.sdk.send({"type": "response.cancel", "response_id": id})
        assert await failed(16) == ["response_not_active"] * 16
        await connection.check_usable()


@flow
async def lanes_have_a_bound(client: Client) -> None:
    async with connect_responses(client) as connection:
        first = {"type": "response.create", "input": "hello", "stream_id": "lane 0", **LONG}
        await connection.sdk.send(first)
        id = (await connection.receive_until("response.output_text.delta"))[0]["response"]["id"]
        fields: Event = {"previous_response_id": id, "input": "and?", "max_output_tokens": 1}
        for n in range(1, 33):  # queued behind the first
            await connection.create(stream_id=f"lane {n}", **fields)
        ended: set[str] = set()
        while len(ended) < 32:
            event = await connection.recv()
            if event["type"] in ENDS:
                ended.add(event["stream_id"])
            if event["type"] == "error":
                assert event["error"]["code"] == "websocket_stream_limit_reached"
                assert (event["status"], event["stream_id"]) == (400, "lane 32")
                await connection.sdk.send({"type": "response.cancel", "response_id": id})
        assert ended == {f"lane {n}" for n in range(32)}
        await connection.check_usable()


@flow
async def refused_responses_leave_the_connection_good(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.check_refused(
            "previous_response_not_found", input="x", previous_response_id="resp_no"
        )
        await connection.check_refused("context_length_exceeded", input="word " * 5000)
        await connection.check_refused("invalid_value", input=[{"type": "computer_call"}])
        await connection.check_refused("decimal_above_max_value", input="x", temperature=3)
        await connection.sdk.send_raw("{")
        assert (await connection.recv())["error"]["code"] == "invalid_json"
        await connection.sdk.send({"type": "response.cancel", "response_id": "resp_no"})
        assert (await connection.recv())["error"]["code"] == "response_not_active"
        await connection.check_usable()


@flow
async def what_agents_send_unasked_is_accepted(client: Client) -> None:
    async with connect_responses(client) as connection:
        response = await connection.run_turn(
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
        await connection.sdk.send({"type": "response.create", "input": reference, **more})
        await connection.receive_until()


@flow
async def a_responses_text_follows_a_schema(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    async with connect_responses(client) as connection:
        format = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
        response = await connection.run_turn(
            "Where is the Colosseum?", text={"format": format}, max_output_tokens=60
        )
        assert json.loads(text_of(response))["city"] in ("Rome", "Paris")
        assert response["text"]["format"]["name"] == "city"

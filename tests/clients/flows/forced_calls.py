"""Flows of required and forbidden tool calls, and of the schemas that calls follow."""

import json

from tests.clients.flows.connections import Client, RealtimeConnection, flow

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
LIGHT = {
    "type": "function",
    "name": "set_light",
    "description": "Turns a light on or off.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "room": {"type": "string", "pattern": "^[a-z]{3,8}$"},
            "on": {"type": "boolean"},
            "level": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["room", "on", "level"],
        "additionalProperties": False,
    },
}


async def with_tools(connection: RealtimeConnection, **session: object) -> None:
    settings = {"type": "realtime", "tools": [WEATHER, LIGHT], **session}
    await connection.sdk.session.update(session=settings)
    updated = (await connection.expect("session.updated"))["session"]
    assert updated["tools"] == [WEATHER, LIGHT]
    for key, value in session.items():
        assert updated[key] == value


def calls_of(events: list[dict]) -> list[tuple[str, dict]]:
    """Return the calls of a response; each follows its schema and equals its deltas."""
    done = events[-1]["response"]
    assert done["status"] == "completed", done
    calls = []
    for item in done["output"]:
        assert item["type"] == "function_call"
        deltas = [
            event["delta"]
            for event in events
            if event["type"] == "response.function_call_arguments.delta"
            and event["item_id"] == item["id"]
        ]
        assert "".join(deltas) == item["arguments"]
        arguments = json.loads(item["arguments"])
        if item["name"] == "get_weather":
            assert list(arguments) == ["city"]
            assert arguments["city"] in ("Rome", "Paris", "Oslo")
        else:
            assert list(arguments) == ["room", "on", "level"]
            assert 3 <= len(arguments["room"]) <= 8
            assert isinstance(arguments["on"], bool)
            assert arguments["level"] in range(1, 10)
        calls.append((item["name"], arguments))
    return calls


@flow
async def a_call_is_required(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection, tool_choice="required")
        await connection.add_message("Hello, how are you?")
        assert calls_of(await connection.create_response(max_output_tokens=300))


@flow
async def a_named_tool_is_called(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection)
        for name in ("set_light", "get_weather"):
            await connection.add_message("What is the weather in Rome?")
            choice = {"type": "function", "name": name}
            ((called, _),) = calls_of(await connection.create_response(tool_choice=choice))
            assert called == name


@flow
async def a_chosen_tool_that_goes_takes_the_choice_along(client: Client) -> None:
    async with client.connect_realtime() as connection:
        choice = {"type": "function", "name": "get_weather"}
        await with_tools(connection, tool_choice=choice)
        await connection.add_message("Hello, how are you?")
        events = await connection.create_response(tools=[LIGHT], max_output_tokens=40)
        done = events[-1]["response"]
        assert [item["type"] for item in done["output"]] == ["message"]
        await connection.send(type="session.update", session={"type": "realtime", "tools": [LIGHT]})
        updated = (await connection.expect("session.updated"))["session"]
        assert (updated["tools"], updated["tool_choice"]) == ([LIGHT], "auto")
        done = await connection.run_turn("Hello, how are you?", max_output_tokens=40)
        assert [item["type"] for item in done["output"]] == ["message"]


@flow
async def at_most_one_call(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection, tool_choice="required", parallel_tool_calls=False)
        for seed in range(4):
            await connection.add_message(
                "The weather in Rome and Paris, and light in the kitchen, please."
            )
            events = await connection.create_response(
                temperature=1.5, seed=seed, max_output_tokens=300
            )
            assert len(calls_of(events)) == 1


@flow
async def a_strict_schema_is_followed_however_hot(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection, tool_choice={"type": "function", "name": "set_light"})
        for seed in range(5):
            await connection.add_message("hello")
            calls_of(await connection.create_response(temperature=2.0, seed=seed))


@flow
async def no_call_where_none_may_be(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection)
        await connection.add_message("What is the weather in Rome?")
        events = await connection.create_response(tool_choice="none", max_output_tokens=40)
        done = events[-1]["response"]
        assert [item["type"] for item in done["output"]] == ["message"]


@flow
async def a_schema_that_cannot_be_enforced_is_refused(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await with_tools(connection)
        parameters = {"type": "object", "not": {"required": ["city"]}}
        strict = {**WEATHER, "strict": True, "parameters": parameters}
        await connection.send(
            type="session.update", session={"type": "realtime", "tools": [strict]}
        )
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_function_parameters", "session.tools")
        assert "not" in error["message"]
        await connection.send(type="response.create", response={"tools": [strict]})
        assert (await connection.expect("error"))["error"]["param"] == "response.tools"
        loose = {**WEATHER, "parameters": parameters}
        await connection.sdk.session.update(session={"type": "realtime", "tools": [loose]})
        assert (await connection.expect("session.updated"))["session"]["tools"] == [loose]
        await connection.check_usable()


@flow
async def a_calls_kv_stays_warm(client: Client) -> None:
    """KV is kept while the tool runs: only its result and what follows are computed."""
    async with client.connect_realtime() as connection:
        await with_tools(connection, tool_choice="required", parallel_tool_calls=False)
        await connection.add_message("What is the weather in Rome?")
        calling = (await connection.create_response(max_output_tokens=300))[-1]["response"]
        (call,) = calling["output"]
        item = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        await connection.send(type="conversation.item.create", item=item)
        await connection.expect("conversation.item.added", "conversation.item.done")
        events = await connection.create_response(tool_choice="none", max_output_tokens=20)
        done = events[-1]["response"]
        cached = done["usage"]["input_token_details"]["cached_tokens"]
        before, now = calling["usage"]["total_tokens"], done["usage"]["input_tokens"]
        assert now - 40 < before - 1 <= cached < now, (before, cached, now)


@flow
async def a_strict_tool_is_called_where_the_model_likes(client: Client) -> None:
    """With `auto`, text is unconstrained and a call follows its schema."""
    async with client.connect_realtime() as connection:
        strict = {**WEATHER, "strict": True}
        await connection.sdk.session.update(session={"type": "realtime", "tools": [strict]})
        await connection.expect("session.updated")
        await connection.add_message("Hello!")
        hello = (await connection.create_response(max_output_tokens=60))[-1]["response"]
        assert [item["type"] for item in hello["output"]] == ["message"]
        await connection.add_message("What is the weather in Rome?")
        assert calls_of(await connection.create_response()) == [("get_weather", {"city": "Rome"})]

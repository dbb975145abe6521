"""Flows with two calls in one response, and their results together; test_parallel_calls scripts the
model that makes the calls."""

from typing import Any

from tests.clients.flows.connections import Client, Event, on_server, text_of
from tests.clients.flows.forced_calls import WEATHER
from tests.clients.flows.responses import connect_responses

QUESTION = "What is the weather in Rome and in Oslo?"
ARGUMENTS = ['{"city": "Rome"}', '{"city": "Oslo"}']
RESULTS = ["cloudless", "foggy"]
ANSWER = "It is sunny in Rome."


def check(calls: list[Event], events: list[Event]) -> None:
    """Check that each call has an id and an index of its own, and arguments equal to its deltas."""
    assert [item["arguments"] for item in calls] == ARGUMENTS
    assert {item["name"] for item in calls} == {"get_weather"}
    assert len({item["call_id"] for item in calls} | {item["id"] for item in calls}) == 4
    for index, item in enumerate(calls):
        own = [event for event in events if event.get("item_id") == item["id"]]
        calling = [event for event in own if "function_call_arguments" in event["type"]]
        assert {event["output_index"] for event in calling} == {index}
        assert "".join(event.get("delta", "") for event in calling) == item["arguments"]
        assert calling[-1]["arguments"] == item["arguments"]


def results(calls: list[Event]) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": result}
        for item, result in zip(calls, RESULTS, strict=True)
    ]


@on_server("two_calls")
async def two_calls_in_an_answer(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.sdk.session.update(session={"type": "realtime", "tools": [WEATHER]})
        await connection.expect("session.updated")
        await connection.add_message(QUESTION)
        events = await connection.create_response(tool_choice="required")
        calls = events[-1]["response"]["output"]
        check(calls, events)
        for item in results(calls):
            await connection.send(type="conversation.item.create", item=item)
            await connection.expect("conversation.item.added", "conversation.item.done")
        assert text_of((await connection.create_response())[-1]["response"]) == ANSWER


@on_server("two_calls")
async def two_calls_in_a_response(client: Client) -> None:
    async with connect_responses(client) as connection:
        fields: Any = {"tools": [WEATHER]}
        await connection.create(input=QUESTION, tool_choice="required", **fields)
        events = await connection.receive_until()
        first = events[-1]["response"]
        check(first["output"], events)
        successor: Any = {"previous_response_id": first["id"], "input": results(first["output"])}
        assert text_of(await connection.run_turn(**successor, **fields)) == ANSWER


@on_server("two_calls")
async def two_calls_in_a_chat(client: Client) -> None:
    """Each call has its `index` in the chunks of a stream; the SDK assembles the call by it."""
    completions = client.api().chat.completions
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools: Any = [{"type": "function", "function": function}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    fields: Any = {"model": "demo", "tools": tools}
    pieces: dict[int, str] = {}
    ids: dict[int, str] = {}
    stream = completions.stream(messages=messages, tool_choice="required", **fields)
    async with stream as chunks:
        async for event in chunks:
            if event.type == "chunk" and event.chunk.choices:
                for piece in event.chunk.choices[0].delta.tool_calls or []:
                    ids.setdefault(piece.index, piece.id or "")
                    arguments = piece.function.arguments if piece.function else None
                    pieces[piece.index] = pieces.get(piece.index, "") + (arguments or "")
        whole = await chunks.get_final_completion()
    assert pieces == dict(enumerate(ARGUMENTS))
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls or []
    assert [called.function.arguments for called in calls] == ARGUMENTS
    assert [called.id for called in calls] == [*ids.values()]
    assert all(ids.values())
    assert ids[0] != ids[1]
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": called.id,
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": called.function.arguments},
                }
                for called in calls
            ],
        },
        *(
            {"role": "tool", "tool_call_id": called.id, "content": result}
            for called, result in zip(calls, RESULTS, strict=True)
        ),
    ]
    second = await completions.create(messages=messages, **fields)
    assert second.choices[0].message.content == ANSWER

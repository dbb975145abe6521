"""Two calls in one response: what comes back of each, and their results together (see
test_parallel_calls, whose model says them)."""

from typing import Any

from tests.clients.flows.forced_calls import WEATHER
from tests.clients.flows.responses import call
from tests.clients.flows.talk import Client, Event, at, text_of

QUESTION = "What is the weather in Rome and in Oslo?"
ARGUMENTS = ['{"city": "Rome"}', '{"city": "Oslo"}']
RESULTS = ["cloudless", "foggy"]
ANSWER = "It is sunny in Rome."


def check(calls: list[Event], events: list[Event]) -> None:
    """Each has an id and a place of its own, and its deltas are what it says."""
    assert [item["arguments"] for item in calls] == ARGUMENTS
    assert {item["name"] for item in calls} == {"get_weather"}
    assert len({item["call_id"] for item in calls} | {item["id"] for item in calls}) == 4
    for place, item in enumerate(calls):
        own = [event for event in events if event.get("item_id") == item["id"]]
        calling = [event for event in own if "function_call_arguments" in event["type"]]
        assert {event["output_index"] for event in calling} == {place}
        assert "".join(event.get("delta", "") for event in calling) == item["arguments"]
        assert calling[-1]["arguments"] == item["arguments"]


def results(calls: list[Event]) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": result}
        for item, result in zip(calls, RESULTS, strict=True)
    ]


@at("two_calls")
async def two_calls_in_an_answer(client: Client) -> None:
    async with client.talk() as talk:
        await talk.connection.session.update(session={"type": "realtime", "tools": [WEATHER]})
        await talk.expect("session.updated")
        await talk.say(QUESTION)
        events = await talk.answer(tool_choice="required")
        calls = events[-1]["response"]["output"]
        check(calls, events)
        for item in results(calls):
            await talk.send(type="conversation.item.create", item=item)
            await talk.expect("conversation.item.added", "conversation.item.done")
        assert text_of((await talk.answer())[-1]["response"]) == ANSWER


@at("two_calls")
async def two_calls_in_a_response(client: Client) -> None:
    async with call(client) as line:
        wish: Any = {"tools": [WEATHER]}
        await line.create(input=QUESTION, tool_choice="required", **wish)
        events = await line.end()
        first = events[-1]["response"]
        check(first["output"], events)
        on: Any = {"previous_response_id": first["id"], "input": results(first["output"])}
        assert text_of(await line.turn(**on, **wish)) == ANSWER


@at("two_calls")
async def two_calls_in_a_chat(client: Client) -> None:
    """In the chunks of a stream each call has its `index`; the SDK puts them together by it."""
    completions = client.api().chat.completions
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools: Any = [{"type": "function", "function": function}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    wish: Any = {"model": "demo", "tools": tools}
    pieces: dict[int, str] = {}
    ids: dict[int, str] = {}
    stream = completions.stream(messages=messages, tool_choice="required", **wish)
    async with stream as chunks:
        async for event in chunks:
            if event.type == "chunk" and event.chunk.choices:
                for piece in event.chunk.choices[0].delta.tool_calls or []:
                    ids.setdefault(piece.index, piece.id or "")
                    told = piece.function.arguments if piece.function else None
                    pieces[piece.index] = pieces.get(piece.index, "") + (told or "")
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
    second = await completions.create(messages=messages, **wish)
    assert second.choices[0].message.content == ANSWER

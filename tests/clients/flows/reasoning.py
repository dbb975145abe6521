"""Flows with a model that reasons; test_reasoning_flows scripts it."""

# pyright: reportMissingImports=false

import json
from typing import Any

from openai.types.responses import ResponseReasoningItem

from tests.clients.flows.connections import Client, kinds, on_server, text_of
from tests.clients.flows.responses import connect_responses

THOUGHT, ANSWER = "Rome is warm.", "It is sunny."
MARKS = {"response.reasoning_text.delta", "response.reasoning_text.done"}


@on_server("reasoning")
async def reasoning_is_an_item_of_a_response(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.create(input="The weather?", reasoning={"effort": "high"})
        events = await connection.receive_until()
        assert kinds(events) == [
            *("response.created", "response.in_progress", "response.output_item.added"),
            *("response.content_part.added", "response.reasoning_text.delta"),
            *("response.reasoning_text.done", "response.content_part.done"),
            *("response.output_item.done", "response.output_item.added"),
            *("response.content_part.added", "response.output_text.delta"),
            *("response.output_text.done", "response.content_part.done"),
            *("response.output_item.done", "response.completed"),
        ]
        response = events[-1]["response"]
        item = ResponseReasoningItem.model_validate(response["output"][0])
        assert item.content is not None
        assert [part.text for part in item.content] == [THOUGHT]
        assert text_of({"output": response["output"][1:]}) == ANSWER
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        again = [{"role": "user", "content": "The weather?"}, *response["output"]]
        await connection.run_turn(input=[*again, {"role": "user", "content": "And now?"}])


@on_server("reasoning")
async def reasoning_streams_over_http(client: Client) -> None:
    api = client.api()
    text: dict[str, str] = {}
    stream = await api.responses.create(
        model="demo", input="The weather?", reasoning={"effort": "low"}, stream=True
    )
    async for event in stream:
        if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
            text[event.type] = text.get(event.type, "") + event.delta
    assert [*text.values()] == [THOUGHT, ANSWER]


@on_server("reasoning")
async def reasoning_content_of_a_chat(client: Client) -> None:
    completions = client.api().chat.completions
    fields: Any = {"model": "demo", "messages": [{"role": "user", "content": "The weather?"}]}
    whole = await completions.create(**fields, reasoning_effort="high")
    message = whole.choices[0].message
    assert (message.content, message.model_extra) == (ANSWER, {"reasoning_content": THOUGHT})
    details = whole.usage.completion_tokens_details if whole.usage else None
    assert details is not None
    assert (details.reasoning_tokens or 0) > 0
    text, thought = "", ""
    async for chunk in await completions.create(**fields, stream=True, reasoning_effort="high"):
        if chunk.choices:
            delta = chunk.choices[0].delta
            text += delta.content or ""
            thought += (delta.model_extra or {}).get("reasoning_content", "")
    assert (text, thought) == (ANSWER, THOUGHT)


@on_server("reasoning")
async def reasoning_is_hidden_in_a_session(client: Client) -> None:
    async with client.connect_realtime() as connection:
        update: Any = {"type": "realtime", "reasoning": {"effort": "high"}}
        await connection.sdk.session.update(session=update)
        session = (await connection.expect("session.updated"))["session"]
        assert session["reasoning"] == {"effort": "high"}
        await connection.add_message("The weather?")
        events = await connection.create_response()
        assert not MARKS & set(kinds(events))
        assert text_of(events[-1]["response"]) == ANSWER


@on_server("reasoning")
async def reasoning_is_sent_to_a_session_that_includes_it(client: Client) -> None:
    async with client.connect_realtime() as connection:
        include = ["response.reasoning_text"]
        update: Any = {"type": "realtime", "include": include, "enable_thinking": True}
        await connection.sdk.session.update(session=update)
        # The SDK types `include` with its own values, and does not validate what it receives.
        updated = json.loads(await connection.sdk.recv_bytes())
        assert updated["session"]["include"] == include
        await connection.add_message("The weather?")
        events = await connection.create_response()
        assert set(kinds(events)) >= MARKS
        thought = [event for event in events if event["type"] in MARKS]
        assert "".join(event.get("delta", "") for event in thought) == THOUGHT
        assert thought[-1]["text"] == THOUGHT
        assert text_of(events[-1]["response"]) == ANSWER

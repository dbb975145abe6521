"""Flows of the Responses API and chat completions over HTTP."""
# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable
from typing import Any, Literal

from openai import APIStatusError
from openai.types.responses import Response
from pydantic import BaseModel

from tests.clients.flows.connections import Client, flow
from tests.clients.flows.responses import WEATHER


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


async def refusal(request: Awaitable[object]) -> tuple[int, str | None]:
    try:
        await request
    except APIStatusError as error:
        return error.status_code, error.code
    raise AssertionError("the request was not refused")


@flow
async def a_response_over_http(client: Client) -> None:
    openai = client.api()
    first = await openai.responses.create(model="demo", input="hello")
    assert first.usage is not None
    assert first.output_text
    second = await openai.responses.create(
        model="demo", input="And then?", previous_response_id=first.id
    )
    assert cached(second) >= first.usage.total_tokens - 1
    retrieved = await openai.responses.retrieve(second.id)
    assert retrieved.output == second.output
    await openai.responses.delete(second.id)
    for request in (openai.responses.retrieve(second.id), openai.responses.delete(second.id)):
        assert await refusal(request) == (404, "response_not_found")
    successor = openai.responses.create(model="demo", input="x", previous_response_id=second.id)
    assert await refusal(successor) == (400, "previous_response_not_found")
    other = openai.responses.create(model="gpt-99", input="x")
    assert await refusal(other) == (404, "model_not_found")


@flow
async def a_response_as_a_stream(client: Client) -> None:
    openai = client.api()
    events = [
        event
        async for event in await openai.responses.create(
            model="demo", input="Tell me a story.", stream=True, max_output_tokens=40
        )
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    id = events[0].response.id
    later = [
        event async for event in await openai.responses.retrieve(id, stream=True, starting_after=9)
    ]
    assert [event.model_dump() for event in later] == [event.model_dump() for event in events[10:]]
    async with openai.responses.stream(model="demo", input="hello") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text


@flow
async def a_response_over_http_follows_a_schema(client: Client) -> None:
    class City(BaseModel):
        name: Literal["Rome", "Paris"]
        capital: bool

    openai = client.api()
    parsed = await openai.responses.parse(
        model="demo", input="Which city?", text_format=City, max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed, City), parsed
    chat = await openai.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Which city?"}],
        response_format=City,
        max_tokens=200,
    )
    assert isinstance(chat.choices[0].message.parsed, City)


@flow
async def json_mode_says_an_object(client: Client) -> None:
    """A small model may generate an endless object; every completed output is a whole one."""
    openai = client.api()
    json_mode: Any = {"type": "json_object"}
    question = "Answer in JSON: which city?"
    ended: list[str] = []
    for penalty in (1.5, 1.3, 1.4, 1.2):
        if ended:
            break
        fields: Any = {"model": "demo", "extra_body": {"repetition_penalty": penalty}}
        response = await openai.responses.create(
            input=question, text={"format": json_mode}, max_output_tokens=300, **fields
        )
        outputs = [(response.output_text, response.status == "completed")]
        chat = await openai.chat.completions.create(
            messages=[{"role": "user", "content": question}],
            response_format=json_mode,
            max_tokens=300,
            **fields,
        )
        choice = chat.choices[0]
        outputs.append((choice.message.content or "", choice.finish_reason == "stop"))
        assert all(text.lstrip().startswith("{") for text, _ in outputs)
        ended += [text for text, whole in outputs if whole]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@flow
async def a_response_in_the_background(client: Client) -> None:
    openai = client.api()
    started = await openai.responses.create(
        model="demo",
        input="hello",
        background=True,
        max_output_tokens=1000,
        extra_body={"ignore_eos": True},
    )
    assert started.status == "in_progress"
    async with await openai.responses.retrieve(started.id, stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    ended = await openai.responses.cancel(started.id)
    assert ended.incomplete_details is not None
    assert (await openai.responses.retrieve(started.id)).status == "incomplete"


@flow
async def a_chat_completion(client: Client) -> None:
    openai = client.api()
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
    ]
    first = await openai.chat.completions.create(model="demo", messages=messages)
    assert first.usage is not None
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.role) == ("stop", "assistant")
    messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "And then?"}]
    second = await openai.chat.completions.create(model="demo", messages=messages)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0, "the history is found in KV"


@flow
async def a_chat_completion_as_a_stream(client: Client) -> None:
    openai = client.api()
    text, usage, reasons = "", None, []
    async for chunk in await openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text
    assert reasons[-1] == "stop"
    assert usage is not None
    assert usage.completion_tokens > 0


@flow
async def a_chat_completion_calls_a_tool(client: Client) -> None:
    openai = client.api()
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools: list[Any] = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    async with openai.chat.completions.stream(
        model="demo", messages=messages, tools=tools
    ) as stream:
        async for _ in stream:
            pass
        first = await stream.get_final_completion()
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    (called,) = message.tool_calls or []
    assert json.loads(called.function.arguments) == {"city": "Rome"}
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
            ],
        },
        {
            "role": "tool",
            "tool_call_id": called.id,
            "content": json.dumps({"condition": "sunny", "temperature": 21}),
        },
    ]
    second = await openai.chat.completions.create(model="demo", messages=messages, tools=tools)
    text = second.choices[0].message.content or ""
    assert "21" in text or "sunny" in text, text

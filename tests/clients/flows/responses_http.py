"""Flows of the Responses API and chat completions over HTTP."""
# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable
from typing import Any, Literal

from openai import APIStatusError
from openai.types.responses import Response
from pydantic import BaseModel

from tests.clients.flows.connections import Client, flow, text_of
from tests.clients.flows.responses import WEATHER, connect_responses


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
        max_output_tokens=2000,
        extra_body={"ignore_eos": True},
    )
    assert started.status == "in_progress"
    async with await openai.responses.retrieve(started.id, stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    ended = await openai.responses.cancel(started.id)
    assert ended.status == "cancelled"
    assert (await openai.responses.retrieve(started.id)).status == "cancelled"


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


@flow
async def log_probabilities_are_reported(client: Client) -> None:
    openai = client.api()
    chat = await openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=8,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(one.token for one in logprobs.content) == chat.choices[0].message.content
    assert all(len(one.top_logprobs) == 2 for one in logprobs.content)
    response = await openai.responses.create(
        model="demo",
        input="hello",
        max_output_tokens=16,
        include=["message.output_text.logprobs"],
        top_logprobs=1,
    )
    message: Any = response.output[0]
    part = message.content[0]
    assert "".join(one.token for one in part.logprobs) == part.text


@flow
async def a_token_is_preferred(client: Client) -> None:
    openai = client.api()
    drawn: list[str | None] = []
    for id in (300, 301, 302):
        answer = await openai.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=1,
            logit_bias={str(id): 100},
        )
        drawn.append(answer.choices[0].message.content)
    assert len(set(drawn)) == 3, "each bias has its own token"


@flow
async def a_completion_of_raw_text(client: Client) -> None:
    openai = client.api()
    fields: Any = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12}
    whole = await openai.completions.create(**fields)
    chunks = [chunk async for chunk in await openai.completions.create(**fields, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    both = await openai.completions.create(
        model="demo", prompt=["one", "two"], max_tokens=4, logprobs=1
    )
    assert [choice.index for choice in both.choices] == [0, 1]
    assert all(choice.logprobs for choice in both.choices)
    assert await refusal(openai.embeddings.create(model="demo", input="x")) == (404, "not_found")


@flow
async def input_items_and_tokens_of_a_response(client: Client) -> None:
    openai = client.api()
    counted = await openai.responses.input_tokens.count(model="demo", input="one")
    response = await openai.responses.create(model="demo", input="one", max_output_tokens=16)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
    page = await openai.responses.input_items.list(response.id)
    (item,) = page.data
    assert item.type == "message"
    assert item.role == "user"


@flow
async def a_conversation_keeps_its_items(client: Client) -> None:
    openai = client.api()
    conversation = await openai.conversations.create(
        items=[{"type": "message", "role": "user", "content": "one"}], metadata={"topic": "a"}
    )
    added = await openai.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "assistant", "content": "two"}]
    )
    page = await openai.conversations.items.list(conversation.id, order="asc")
    assert [item.id for item in page.data][1:] == [added.data[0].id]
    updated = await openai.conversations.update(conversation.id, metadata={"topic": "b"})
    assert await openai.conversations.retrieve(conversation.id) == updated
    kept = await openai.conversations.items.delete(added.data[0].id, conversation_id=updated.id)
    assert kept.id == conversation.id
    assert (await openai.conversations.delete(conversation.id)).deleted
    gone = openai.conversations.retrieve(conversation.id)
    assert await refusal(gone) == (404, "conversation_not_found")


@flow
async def responses_of_a_conversation(client: Client) -> None:
    openai = client.api()
    conversation = await openai.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Ada."}]
    )
    fields: Any = {"model": "demo", "max_output_tokens": 16}
    first = await openai.responses.create(
        input="What is my name?", conversation=conversation.id, **fields
    )
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    stream = await openai.responses.create(
        input="And yours?", conversation={"id": conversation.id}, stream=True, **fields
    )
    texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    async with connect_responses(client) as connection:
        third = await connection.run_turn("Thank you.", conversation=conversation.id)
        assert third["usage"]["input_tokens_details"]["cached_tokens"] > 0
    page = await openai.conversations.items.list(conversation.id, order="asc")
    said: list[str] = []
    for item in page.data:
        assert item.type == "message"
        said += [part.text for part in item.content if hasattr(part, "text")]
    assert said == [
        *("My name is Ada.", "What is my name?", first.output_text),
        *("And yours?", "".join(texts)),
        *("Thank you.", text_of(third)),
    ]
    both = openai.responses.create(
        input="x", conversation=conversation.id, previous_response_id=first.id, **fields
    )
    assert await refusal(both) == (400, "mutually_exclusive_parameters")
    unknown = openai.responses.create(input="x", conversation="conv_0", **fields)
    assert await refusal(unknown) == (404, "conversation_not_found")

"""Flows of the real Anthropic SDK, in the environment of `middleware`.

    .venv-middleware/bin/python -m tests.clients.anthropic_flows KEY URL

Prints a JSON object: for each flow null, or the error that it ended with.
"""
# pyright: reportMissingImports=false

import functools
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

import anthropic
import pydantic
from anthropic.types import Message

TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
QUESTION: Any = {"role": "user", "content": "What is the weather in Rome?"}
Flow = Callable[[anthropic.Anthropic], None]
FLOWS: dict[str, Flow] = {}


def flow(run: Flow) -> Flow:
    FLOWS[run.__name__] = run
    return run


def check(message: Message) -> Message:
    """Validate a message against the types of the SDK, which itself does not."""
    return Message.model_validate(message.model_dump(), strict=True)


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def refusal_of(client: anthropic.Anthropic, **request: Any) -> str:
    """Make a request that is refused with 400. Returns the message of the error."""
    try:
        client.messages.create(model="demo", max_tokens=20, **request)
    except anthropic.BadRequestError as refused:
        return str(refused)
    raise AssertionError("not refused")


@flow
def a_message(client: anthropic.Anthropic) -> None:
    message = check(
        client.messages.create(
            model="demo", max_tokens=30, messages=[{"role": "user", "content": "hello"}]
        )
    )
    assert text_of(message)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens > 0


@flow
def a_history_with_a_system_prompt(client: anthropic.Anthropic) -> None:
    first = client.messages.create(
        model="demo",
        max_tokens=20,
        system=[{"type": "text", "text": "Be kind."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "My name is Zorban."}]}],
    )
    again = check(
        client.messages.create(
            model="demo",
            max_tokens=20,
            system="Be kind.",
            messages=[
                {"role": "user", "content": "My name is Zorban."},
                {"role": "assistant", "content": text_of(first)},
                {"role": "user", "content": "What is my name?"},
            ],
        )
    )
    assert (again.usage.cache_read_input_tokens or 0) > 0, "the KV of the history is reused"


@flow
def a_system_message_between_others(client: anthropic.Anthropic) -> None:
    """Claude Code sends one after its first message, and between turns."""
    between: Any = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    history: Any = [{"role": "user", "content": "My name is Zorban."}, between, QUESTION]
    alone = client.messages.count_tokens(model="demo", messages=[history[0], QUESTION])
    with_it = client.messages.count_tokens(model="demo", messages=history)
    assert with_it.input_tokens > alone.input_tokens
    assert text_of(check(client.messages.create(model="demo", max_tokens=20, messages=history)))
    first: Any = [{"role": "system", "content": "Be kind."}, QUESTION]
    counts = {
        client.messages.count_tokens(model="demo", messages=first).input_tokens,
        client.messages.count_tokens(
            model="demo", system="Be kind.", messages=[QUESTION]
        ).input_tokens,
    }
    assert len(counts) == 1, "as the first message it is the system prompt"
    image: Any = {"role": "system", "content": [{"type": "image"}]}
    refusal = refusal_of(client, messages=[QUESTION, image])
    assert "messages[1].content[0].type" in refusal


@flow
def an_output_format(client: anthropic.Anthropic) -> None:
    class City(pydantic.BaseModel):
        name: Literal["Rome", "Oslo"]
        is_large: bool

    parsed = client.messages.parse(
        model="demo", max_tokens=60, messages=[QUESTION], output_format=City
    )
    assert isinstance(parsed.parsed_output, City)
    with client.messages.stream(
        model="demo", max_tokens=60, messages=[QUESTION], output_format=City
    ) as stream:
        assert isinstance(stream.get_final_message().parsed_output, City)


@flow
def a_strict_tool(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    message = client.messages.create(
        model="demo",
        max_tokens=100,
        tools=[TOOL | {"strict": True, "input_schema": schema}],
        tool_choice={"type": "tool", "name": "get_weather"},
        messages=[QUESTION],
    )
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.input["city"] in ("Rome", "Oslo")
    unenforceable = {"type": "object", "not": {"required": ["city"]}}
    tool = TOOL | {"strict": True, "input_schema": unenforceable}
    assert "get_weather" in refusal_of(client, messages=[QUESTION], tools=[tool])


@flow
def a_stream(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "demo", "max_tokens": 30, "messages": [QUESTION]}
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        message = check(stream.get_final_message())
    assert text_of(message) == text
    assert text == text_of(client.messages.create(**request))
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0
    types = [event.type for event in client.messages.create(**request, stream=True)]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@flow
def a_tool_and_its_result(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "demo", "max_tokens": 100, "tools": [TOOL]}
    forced = {"type": "tool", "name": "get_weather"}
    message = check(client.messages.create(**request, messages=[QUESTION], tool_choice=forced))
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert isinstance(call.input["city"], str)
    with client.messages.stream(**request, messages=[QUESTION], tool_choice=forced) as stream:
        streamed = check(stream.get_final_message())
    (again,) = [block for block in streamed.content if block.type == "tool_use"]
    assert (again.name, again.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 degrees"}
    answer = check(
        client.messages.create(
            **request,
            messages=[
                QUESTION,
                {"role": "assistant", "content": [block.model_dump() for block in message.content]},
                {"role": "user", "content": [result]},
            ],
        )
    )
    assert text_of(answer)


@flow
def a_stop_sequence(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "demo", "max_tokens": 30, "messages": [QUESTION]}
    text = text_of(client.messages.create(**request))
    stop = text[len(text) // 2 :][:3]
    stopped = check(client.messages.create(**request, stop_sequences=[stop]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stop not in text_of(stopped)


@flow
def tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="demo", messages=[QUESTION], tools=[TOOL])
    message = client.messages.create(model="demo", max_tokens=1, messages=[QUESTION], tools=[TOOL])
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@flow
def errors_have_their_classes(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "demo", "max_tokens": 4, "messages": [QUESTION]}
    for changed, kind, words in (
        (client.with_options(api_key="sk-wrong"), anthropic.AuthenticationError, "Incorrect"),
        ({"model": "other"}, anthropic.NotFoundError, "does not exist"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "word " * 5000}]},
            anthropic.BadRequestError,
            "prompt is too long",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            "messages[0].content[0].type",
        ),
    ):
        used, fields = (client, changed) if isinstance(changed, dict) else (changed, {})
        assert words in raised_by(
            functools.partial(used.messages.create, **{**request, **fields}), kind
        )


def raised_by(call: Callable[[], object], kind: type[Exception]) -> str:
    """Return the text of the exception that a call raises, which must be a `kind`."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("the request was not refused")


def main(key: str, url: str) -> None:
    client = anthropic.Anthropic(api_key=key, base_url=url, max_retries=0)
    problems: dict[str, str | None] = {}
    for name, run in FLOWS.items():
        try:
            run(client)
            problems[name] = None
        except Exception:
            problems[name] = traceback.format_exc()
    print(json.dumps(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])

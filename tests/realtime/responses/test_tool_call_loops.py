"""Tool call loops in the format of each model family: question, call, result and answer.

The requests go through the server; the device draws a scripted text."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuo.engine.batch import Geometry
from continuo.engine.text import ChatRole
from continuo.engine.text.tool_writer import write_calls
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import PUBLISHED, family_folder, family_template, family_text
from tests.support.clients import (
    FINAL_EVENT_TYPES,
    ResponsesClient,
    cached_tokens,
    connect_responses,
    output_text,
)
from tests.support.engines import running_engine
from tests.support.reasoning_outputs import reasoning_output
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import serve_harness

pytestmark = pytest.mark.slow

ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
OBJECT = '{{"name": "get_weather", "arguments": {}}}'
HERMES = ("", "<tool_call>\n" + OBJECT + "\n</tool_call>", "\n", "")
MISTRAL = ("[TOOL_CALLS][", OBJECT, ", ", "]")
CALLS: dict[str, tuple[str, str, str, str]] = {
    "qwen2_5": HERMES,
    "qwen3": HERMES,
    "llama3": ("", '{{"name": "get_weather", "parameters": {}}}', "; ", ""),
    "mistral_v3": MISTRAL,
    "mistral_small": MISTRAL,
    "mistral_args": ("", "[TOOL_CALLS]get_weather[ARGS]{}", "", ""),
}
"""The format of calls of each family: prefix, one call, separator, suffix."""
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ANSWER = "It is sunny there."


DERIVED = tuple(name for name in PUBLISHED if name != "gpt_oss")
"""Families whose calls are written by the formats that their templates show. Harmony has one call
in each response: see test_harmony_call_is_read_by_its_tokens."""
NAMES = (*CALLS, *DERIVED)


def calls(name: str, *arguments: str) -> str:
    """The text of a model of the family that calls a tool once with each of `arguments`."""
    if name in DERIVED:
        tool_format = family_template(name).tool_format
        assert tool_format is not None
        return write_calls(tool_format, [("get_weather", json.loads(a)) for a in arguments])
    prefix, call, separator, suffix = CALLS[name]
    return prefix + separator.join(call.format(each) for each in arguments) + suffix


def output(name: str, previous: ChatRole, text: str) -> str:
    """The output of a model of the family after a message of `previous`: `text`, after a thought
    if the header has begun one."""
    template = family_template(name)
    is_open = template.opens_reasoning(template.encode_header(previous))
    return reasoning_output(name, "Hm.", text) if is_open else text


@contextlib.asynccontextmanager
async def scripted_model(
    name: str, *arguments: str
) -> AsyncIterator[tuple[ResponsesClient, ScriptedRunner]]:
    """A client of a server whose model, of the family `name`, calls a tool once with each of
    `arguments`, and then answers."""
    text = family_text(name)
    geometry = Geometry(2000, 4, 8000, text.vocab_size, 256, 0)
    outputs = [output(name, "user", calls(name, *arguments)), output(name, "tool", ANSWER)]
    device = ScriptedRunner(geometry, text, outputs)
    async with (
        running_engine(family_folder(name), lambda: device) as harness,
        serve_harness(harness, GatewaySettings(served_model_name=("demo",))) as server,
        connect_responses(server) as client,
    ):
        yield client, device


async def respond(client: ResponsesClient, **more: Any) -> list[dict[str, Any]]:
    await client.send(max_output_tokens=400, tools=[WEATHER], **more)
    events = await client.receive_until(*FINAL_EVENT_TYPES)
    assert events[-1]["type"] == "response.completed", events[-1]
    return events


def calls_in(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a response, which has no other items than a thought before them."""
    found = [item for item in response["output"] if item["type"] != "reasoning"]
    assert {item["type"] for item in found} == {"function_call"}
    return found


def outputs_of_calls(response: dict[str, Any], *outputs: str) -> list[dict[str, Any]]:
    """Input items with the output of each call of the response."""
    return [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls_in(response), outputs, strict=True)
    ]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", NAMES)
async def test_tool_call_with_its_result_leads_to_an_answer(name: str, choice: str) -> None:
    async with scripted_model(name, ROME) as (client, device):
        events = await respond(client, input="The weather in Rome?", tool_choice=choice)
        calling_response = events[-1]["response"]
        (call,) = calls_in(calling_response)
        assert call["name"] == "get_weather"
        assert json.loads(call["arguments"]) == {"city": "Rome"}
        deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
        assert "".join(deltas) == call["arguments"]
        before = len(device.read_ids)
        continuation = {
            "previous_response_id": calling_response["id"],
            "input": outputs_of_calls(calling_response, "cloudless"),
        }
        answer = (await respond(client, **continuation))[-1]["response"]
        assert output_text(answer) == ANSWER
        prefilled = family_text(name).decode(device.read_ids[before:])
        assert "cloudless" in prefilled, "the result was not prefilled"
        assert "The weather in Rome?" not in prefilled, "the question was prefilled again"
        assert cached_tokens(answer) > 0


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", NAMES)
async def test_two_calls_in_one_response_keep_their_results_in_order(
    name: str, choice: str
) -> None:
    async with scripted_model(name, ROME, OSLO) as (client, device):
        events = await respond(client, input="The weather in Rome and Oslo?", tool_choice=choice)
        calling_response = events[-1]["response"]
        first, second = calls_in(calling_response)
        assert [call["arguments"] for call in (first, second)] == [ROME, OSLO]
        assert first["call_id"] != second["call_id"]
        for call in (first, second):
            own = [event for event in events if event.get("item_id") == call["id"]]
            place = calling_response["output"].index(call)
            assert {event["output_index"] for event in own} == {place}
            assert "".join(event.get("delta", "") for event in own) == call["arguments"]
        before = len(device.read_ids)
        continuation = {
            "previous_response_id": calling_response["id"],
            "input": outputs_of_calls(calling_response, "cloudless", "foggy"),
        }
        answer = (await respond(client, **continuation))[-1]["response"]
        assert output_text(answer) == ANSWER
        prefilled = family_text(name).decode(device.read_ids[before:])
        assert prefilled.index("cloudless") < prefilled.index("foggy"), (
            "the results are out of order"
        )


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "mistral_args"])
async def test_call_that_is_sent_back_is_not_prefilled_again(name: str) -> None:
    written = '{ "city":"Rome","price":1.50 }'
    text = family_text(name)
    outputs = [output(name, "user", calls(name, written)), output(name, "tool", ANSWER)]
    device = ScriptedRunner(Geometry(2000, 4, 8000, text.vocab_size, 256, 0), text, outputs)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The weather in Rome?"}]
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    async with (
        running_engine(family_folder(name), lambda: device) as harness,
        serve_harness(harness, GatewaySettings(served_model_name=("demo",))) as server,
    ):

        async def complete() -> dict[str, Any]:
            body = {"model": "demo", "messages": messages, "tools": [tool]}
            status, reply = await server.request("POST", "/v1/chat/completions", body)
            assert status == 200, reply
            return reply["choices"][0]["message"]

        message = await complete()
        (call,) = message["tool_calls"]
        assert call["function"]["arguments"] == written
        before = len(device.read_ids)
        messages += [
            message,
            {"role": "tool", "tool_call_id": call["id"], "content": "cloudless"},
        ]
        assert (await complete())["content"] == ANSWER
    prefilled = text.decode(device.read_ids[before:])
    assert "cloudless" in prefilled
    assert "price" not in prefilled, "the call was prefilled again"

"""A question, a call, its result and the answer, as each family of models writes them: through the
server, on a device that says what such a model would."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import family, family_folder
from tests.support.engines import engine_on
from tests.support.response_chains import ENDS, Caller, cached, calling, text_of
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import KEY, serve

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
"""How each family writes calls: what opens them, one, what parts two, what closes them."""
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


def calls(name: str, *arguments: str) -> str:
    """What a model of the family says."""
    opens, call, between, closes = CALLS[name]
    return opens + between.join(call.format(given) for given in arguments) + closes


@contextlib.asynccontextmanager
async def model(name: str, *says: str) -> AsyncIterator[tuple[Caller, ScriptedRunner]]:
    """One of the family that says this, and somebody who asks it."""
    text = family(name)
    geometry = Geometry(800, 4, 3200, text.vocab_size, 256, 0)
    device = ScriptedRunner(geometry, text, says)
    async with engine_on(family_folder(name), lambda: device) as bench:
        settings = GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",))
        async with serve(bench, settings) as running, calling(running, KEY) as caller:
            yield caller, device


async def ask(caller: Caller, **more: Any) -> list[dict[str, Any]]:
    await caller.send(max_output_tokens=200, tools=[WEATHER], **more)
    events = await caller.until(*ENDS)
    assert events[-1]["type"] == "response.completed", events[-1]
    return events


def given(response: dict[str, Any], *outputs: str) -> list[dict[str, Any]]:
    """The result of each of its calls."""
    return [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(response["output"], outputs, strict=True)
    ]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CALLS)
async def test_call_result_answer(name: str, choice: str) -> None:
    async with model(name, calls(name, ROME), ANSWER) as (caller, device):
        events = await ask(caller, input="The weather in Rome?", tool_choice=choice)
        asked = events[-1]["response"]
        (call,) = asked["output"]
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        assert json.loads(call["arguments"]) == {"city": "Rome"}
        deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
        assert "".join(deltas) == call["arguments"]
        before = len(device.read)
        on = {"previous_response_id": asked["id"], "input": given(asked, "cloudless")}
        answered = (await ask(caller, **on))[-1]["response"]
        assert text_of(answered) == ANSWER
        read = family(name).decode(device.read[before:])
        assert "cloudless" in read, "the model was told the result"
        assert "The weather in Rome?" not in read, "and nothing again"
        assert cached(answered) > 0


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CALLS)
async def test_two_calls_in_one_response(name: str, choice: str) -> None:
    async with model(name, calls(name, ROME, OSLO), ANSWER) as (caller, device):
        events = await ask(caller, input="The weather in Rome and Oslo?", tool_choice=choice)
        asked = events[-1]["response"]
        first, second = asked["output"]
        assert [call["arguments"] for call in (first, second)] == [ROME, OSLO]
        assert first["call_id"] != second["call_id"]
        for place, call in enumerate((first, second)):
            own = [event for event in events if event.get("item_id") == call["id"]]
            assert {event["output_index"] for event in own} == {place}
            assert "".join(event.get("delta", "") for event in own) == call["arguments"]
        before = len(device.read)
        on = {"previous_response_id": asked["id"], "input": given(asked, "cloudless", "foggy")}
        answered = (await ask(caller, **on))[-1]["response"]
        assert text_of(answered) == ANSWER
        read = family(name).decode(device.read[before:])
        assert read.index("cloudless") < read.index("foggy"), "each result in its place"

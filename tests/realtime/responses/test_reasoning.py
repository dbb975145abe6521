"""Reasoning of models of several families, apart from their text: items and deltas, efforts,
bounds, and what old reasoning costs.

The requests go through the server; the device draws a scripted text."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import family_folder, family_template, family_text
from tests.support.clients import (
    FINAL_EVENT_TYPES,
    JsonEvent,
    RequestRefused,
    ResponsesClient,
    cached_tokens,
    connect_responses,
    output_text,
)
from tests.support.engines import running_engine
from tests.support.reasoning_outputs import ANSWER, OUTPUTS, THOUGHT
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import RunningServer, serve_harness

QUESTION = "The weather in Rome?"
FAMILIES = pytest.mark.parametrize("name", OUTPUTS)
pytestmark = pytest.mark.slow


class Scripted:
    """A server whose model generates given texts, and a client of it."""

    def __init__(
        self, server: RunningServer, client: ResponsesClient, device: ScriptedRunner, name: str
    ) -> None:
        self.server = server
        self.client = client
        self.device = device
        self.text = family_text(name)

    async def respond(self, **request: Any) -> list[JsonEvent]:
        await self.client.send(**{"max_output_tokens": 200, **request})
        return await self.client.receive_until(*FINAL_EVENT_TYPES)

    async def answer(self, **request: Any) -> JsonEvent:
        return (await self.respond(**request))[-1]["response"]

    @contextlib.contextmanager
    def read(self) -> Any:
        """Collect the ids that the device reads meanwhile, without those that it draws."""
        before, found = len(self.device.read_ids), list[int]()
        yield found
        found += self.device.read_ids[before:]


@contextlib.asynccontextmanager
async def scripted_server(name: str, *texts: str) -> AsyncIterator[Scripted]:
    text = family_text(name)
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, texts)
    settings = GatewaySettings(served_model_name=("demo",))
    async with (
        running_engine(family_folder(name), lambda: device) as harness,
        serve_harness(harness, settings) as server,
        connect_responses(server) as client,
    ):
        yield Scripted(server, client, device, name)


def reasoning_text(item: JsonEvent) -> str:
    assert item["type"] == "reasoning"
    return "".join(part["text"] for part in item["content"])


@FAMILIES
async def test_reasoning_is_an_item_before_the_answer(name: str) -> None:
    async with scripted_server(name, OUTPUTS[name]) as scripted:
        events = await scripted.respond(input=QUESTION, reasoning={"effort": "high"})
        response = events[-1]["response"]
        thought, answer = response["output"]
        assert reasoning_text(thought) == THOUGHT
        assert output_text({"output": [answer]}) == ANSWER
        assert response["reasoning"]["effort"] == "high"
        by_index = {0: thought["id"], 1: answer["id"]}
        kinds: dict[str, str] = {}
        for event in events:
            if "output_index" in event and "item_id" in event:
                assert event["item_id"] == by_index[event["output_index"]]
            if event["type"].endswith(".delta"):
                kinds[event["type"]] = kinds.get(event["type"], "") + event["delta"]
        assert kinds == {
            "response.reasoning_text.delta": THOUGHT,
            "response.output_text.delta": ANSWER,
        }
        types = [event["type"] for event in events if event.get("item_id") == thought["id"]]
        assert types[0] == "response.content_part.added"
        assert types[-2:] == ["response.reasoning_text.done", "response.content_part.done"]
        usage = response["usage"]
        reasoning_tokens = usage["output_tokens_details"]["reasoning_tokens"]
        thought_ids = len(scripted.text.encode(THOUGHT))
        assert thought_ids - 2 <= reasoning_tokens <= thought_ids + 12
        assert reasoning_tokens < usage["output_tokens"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@FAMILIES
async def test_reasoning_is_reasoning_content_in_chat_completions(name: str) -> None:
    async with scripted_server(name, OUTPUTS[name]) as scripted:
        request = {
            "model": "demo",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 200,
            "reasoning_effort": "low",
        }
        status, completion = await scripted.server.request("POST", "/v1/chat/completions", request)
        assert status == 200
        message = completion["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == (ANSWER, THOUGHT)
        assert completion["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@FAMILIES
@pytest.mark.parametrize(
    ("bound", "request_of_bound"),
    [
        (1, {"reasoning": {"effort": "high", "max_tokens": 1}}),
        (5, {"reasoning": {"effort": "high", "max_tokens": 5}}),
        (5, {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"thinking_budget": 5}}),
    ],
    ids=["1", "5", "5 of the template"],
)
async def test_bound_forces_the_end_of_the_reasoning(
    name: str, bound: int, request_of_bound: dict[str, Any]
) -> None:
    opened = OUTPUTS[name].partition(THOUGHT)[0]
    script = f"{opened}{'so ' * 60}"
    async with scripted_server(name, script) as scripted:
        response = await scripted.answer(
            input=QUESTION, max_output_tokens=bound + 40, **request_of_bound
        )
        assert response["reasoning"]["max_tokens"] == bound
        usage = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert usage <= bound + 2, "with the tokens before and after it"
        assert [item["type"] for item in response["output"]][-1] == "message"


SWITCHED = (
    *("qwen3", "qwen3_5", "glm4_7", "deepseek_r1", "deepseek_v3_1", "deepseek_v3_2", "seed_oss"),
    *("gemma4", "apertus"),
)
IN_SYSTEM_MESSAGE = ("gemma4", "apertus")
"""Families whose switch is in the system message, not in the header of the answer."""


@pytest.mark.parametrize("name", SWITCHED)
@pytest.mark.parametrize(
    "switch",
    [
        {"reasoning": {"effort": "none"}},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False, "other": 1}},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"thinking_budget": 0}},
        {"chat_template_kwargs": {"reasoning_effort": "none"}},
    ],
    ids=json.dumps,
)
async def test_reasoning_is_switched_off_by_the_template(name: str, switch: dict[str, Any]) -> None:
    async with scripted_server(name, ANSWER) as scripted:
        with scripted.read() as ids:
            response = await scripted.answer(input=QUESTION, **switch)
        assert output_text(response) == ANSWER
        assert [item["type"] for item in response["output"]] == ["message"]
        template = scripted.text.template
        assert template is not None
        header = template.for_effort("none").encode_header("user")
        starts = range(len(ids) - len(header))
        assert any(ids[at : at + len(header)] == header for at in starts)
        on = template.for_effort("high").encode_header("user")
        if name not in IN_SYSTEM_MESSAGE:
            assert on != header


@pytest.mark.parametrize(
    "name", ["minimax_m2", "gpt_oss", "nemotron_nano_v2", "ministral3_reasoning"]
)
async def test_what_the_template_cannot_switch_is_refused_by_name(name: str) -> None:
    async with scripted_server(name, OUTPUTS[name]) as scripted:
        with pytest.raises(RequestRefused) as refused:
            await scripted.respond(input=QUESTION, reasoning={"effort": "none"})
        assert refused.value.code == "unsupported_value"
        assert "reasoning.effort" in str(refused.value)


async def test_contradiction_is_refused() -> None:
    async with scripted_server("qwen3", ANSWER) as scripted:
        with pytest.raises(RequestRefused, match="enable_thinking"):
            await scripted.respond(
                input=QUESTION, reasoning={"effort": "high"}, enable_thinking=False
            )
        with pytest.raises(RequestRefused, match="effort"):
            await scripted.respond(input=QUESTION, reasoning={"effort": "very"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "options": {"enable_thinking": False}}, "enable_thinking"),
        ({"reasoning": {"effort": "high"}, "options": {"thinking": False}}, "thinking"),
        ({"reasoning": {"effort": "low"}, "options": {"thinking_budget": 0}}, "thinking_budget"),
        ({"reasoning": {"max_tokens": 5}, "options": {"thinking_budget": 6}}, "thinking_budget"),
        (
            {"reasoning": {"effort": "low"}, "options": {"reasoning_effort": "high"}},
            "reasoning_effort",
        ),
        ({"options": {"thinking_budget": -2}}, "thinking_budget"),
        ({"options": {"enable_thinking": "no"}}, "enable_thinking"),
    ],
    ids=json.dumps,
)
async def test_refused_options_of_the_template_name_the_field(
    fields: dict[str, Any], param: str
) -> None:
    async with scripted_server("qwen3", ANSWER) as scripted:
        options = fields.pop("options")
        with pytest.raises(RequestRefused, match=f"chat_template_kwargs.{param}"):
            await scripted.respond(input=QUESTION, chat_template_kwargs=options, **fields)


@pytest.mark.parametrize(
    "switch",
    [{"reasoning": {"effort": "low"}}, {"chat_template_kwargs": {"reasoning_effort": "low"}}],
    ids=json.dumps,
)
async def test_effort_of_harmony_is_in_the_system_message(switch: dict[str, Any]) -> None:
    async with scripted_server("gpt_oss", OUTPUTS["gpt_oss"]) as scripted:
        with scripted.read() as ids:
            response = await scripted.answer(input=QUESTION, **switch)
        assert "Reasoning: low" in scripted.text.decode(ids)
        assert response["reasoning"]["effort"] == "low"


async def test_options_of_the_template_in_chat_completions() -> None:
    async with scripted_server("gpt_oss", OUTPUTS["gpt_oss"]) as scripted:
        request = {
            "model": "demo",
            "messages": [{"role": "user", "content": QUESTION}],
            "chat_template_kwargs": {"reasoning_effort": "low", "thinking_budget": 3},
        }
        with scripted.read() as ids:
            status, completion = await scripted.server.request(
                "POST", "/v1/chat/completions", request
            )
        assert status == 200
        assert "Reasoning: low" in scripted.text.decode(ids)
        assert completion["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 3 + 2
        request["thinking_token_budget"] = 4
        status, refused = await scripted.server.request("POST", "/v1/chat/completions", request)
        assert status == 400
        assert refused["error"]["param"] == "chat_template_kwargs.thinking_budget"


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_0_6b", "qwen3_5", "glm4_7", "minimax_m2", "lfm2_5", "gpt_oss"]
)
async def test_old_reasoning_costs_a_rewind_to_the_start_of_its_answer(name: str) -> None:
    """The templates leave out the reasoning when the next user message comes. The answer is
    computed again without it, and nothing before the answer."""
    async with scripted_server(name, OUTPUTS[name]) as scripted:
        with scripted.read() as before:
            first = await scripted.answer(input=QUESTION * 20, reasoning={"effort": "high"})
        with scripted.read() as ids:
            second = await scripted.answer(
                previous_response_id=first["id"],
                input="And now?",
                reasoning={"effort": "high"},
                max_output_tokens=1,
            )
        read = scripted.text.decode(ids)
        assert THOUGHT not in read
        assert ANSWER in read
        assert QUESTION not in read
        template = scripted.text.template
        assert template is not None
        header = template.for_effort("high").encode_header("user")
        kept = first["usage"]["input_tokens"] - len(header)
        cached = cached_tokens(second)
        assert cached >= kept
        assert before[:cached] + ids[:1] != before[: cached + 1], (
            "the first id that differs is read"
        )
        assert len(ids) == second["usage"]["input_tokens"] - cached, "usage shows what was computed"


async def test_template_that_keeps_reasoning_costs_nothing() -> None:
    async with scripted_server("seed_oss", OUTPUTS["seed_oss"]) as scripted:
        first = await scripted.answer(input=QUESTION)
        with scripted.read() as ids:
            await scripted.answer(
                previous_response_id=first["id"], input="And now?", max_output_tokens=1
            )
        assert ANSWER not in scripted.text.decode(ids)


WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def test_reasoning_is_kept_while_tools_are_called() -> None:
    """Between two user messages, the template of Qwen3 keeps the reasoning."""
    output = f"<think>\n{THOUGHT}\n</think>\n\n{CALL}"
    async with scripted_server("qwen3_0_6b", output, OUTPUTS["qwen3_0_6b"]) as scripted:
        first = await scripted.answer(input=QUESTION, tools=[WEATHER])
        thought, call = first["output"]
        assert reasoning_text(thought) == THOUGHT
        assert json.loads(call["arguments"]) == {"city": "Rome"}
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "warm"}
        with scripted.read() as ids:
            second = await scripted.answer(
                previous_response_id=first["id"], input=[result], tools=[WEATHER]
            )
        assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
        drawn = len(scripted.text.encode(OUTPUTS["qwen3_0_6b"]))
        assert "get_weather" not in scripted.text.decode(ids[:-drawn])


async def test_harmony_call_is_read_by_its_tokens() -> None:
    output = (
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}'
    )
    async with scripted_server("gpt_oss", output, OUTPUTS["gpt_oss"]) as scripted:
        first = await scripted.answer(input=QUESTION, tools=[WEATHER])
        thought, call = first["output"]
        assert reasoning_text(thought) == THOUGHT
        assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Rome"}')
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
        second = await scripted.answer(
            previous_response_id=first["id"], input=[result], tools=[WEATHER]
        )
        assert output_text(second) == ANSWER


async def test_schema_holds_after_the_reasoning() -> None:
    text_format = {
        "type": "json_schema",
        "name": "city",
        "schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    script = '<think>\n{not json\n</think>\n\n{"city": "Rome"}'
    async with scripted_server("qwen3", script) as scripted:
        response = await scripted.answer(input=QUESTION, text={"format": text_format})
        assert json.loads(output_text(response)) == {"city": "Rome"}
        assert reasoning_text(response["output"][0]) == "{not json"


async def test_stop_string_in_the_reasoning_does_not_end_the_response() -> None:
    async with scripted_server("qwen3", OUTPUTS["qwen3"]) as scripted:
        response = await scripted.answer(input=QUESTION, stop=["warm", "sunny"])
        assert reasoning_text(response["output"][0]) == THOUGHT
        assert output_text(response) == "It is "


async def test_response_that_ends_within_its_reasoning_has_an_empty_message() -> None:
    async with scripted_server("qwen3", OUTPUTS["qwen3"]) as scripted:
        response = await scripted.answer(input=QUESTION, max_output_tokens=6)
        thought, answer = response["output"]
        assert response["status"] == "incomplete"
        assert THOUGHT.startswith(reasoning_text(thought))
        assert answer["content"] == [
            {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        ]


async def test_reasoning_sent_back_is_rendered_where_the_template_wants_it() -> None:
    async with scripted_server("qwen3_0_6b", ANSWER) as scripted:
        history: list[dict[str, Any]] = [
            {"role": "user", "content": QUESTION},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "so warm"}],
            },
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "get_weather",
                "arguments": '{"city": "Rome"}',
            },
            {"type": "function_call_output", "call_id": "c1", "output": "warm"},
        ]
        with scripted.read() as ids:
            await scripted.answer(input=history, tools=[WEATHER])
        assert "<think>\nso warm\n</think>\n\n<tool_call>" in scripted.text._tokenizer.decode(  # pyright: ignore[reportPrivateUsage]
            ids, skip_special=False
        )


CALLS_IN_THOUGHTS = {
    "apertus": '<|inner_prefix|>Rome, then.<|tools_prefix|>[{"look": {"city": "Rome"}}]'
    "<|tools_suffix|>",
    "qwen3": '<think>\nRome, then.\n<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n'
    "</tool_call>",
    "kimi_k2_thinking": "<think>Rome, then.<|tool_calls_section_begin|><|tool_call_begin|>"
    'functions.look:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}


@pytest.mark.parametrize("ending", ["", " And more.", " And more.{end}It is sunny."])
@pytest.mark.parametrize("name", CALLS_IN_THOUGHTS)
async def test_call_within_reasoning_is_a_call(name: str, ending: str) -> None:
    """A model may call a tool before its reasoning ends, and may go on reasoning afterwards."""
    syntax = family_template(name).reasoning_format
    assert syntax is not None
    output = CALLS_IN_THOUGHTS[name] + ending.format(end=syntax.end)
    async with scripted_server(name, output, OUTPUTS[name]) as scripted:
        more = {"tools": [LOOK], "reasoning": {"effort": "high"}}
        response = (await scripted.respond(input=QUESTION, **more))[-1]["response"]
        thought, call, *rest = response["output"]
        assert reasoning_text(thought) == "Rome, then."
        assert (call["type"], call["name"]) == ("function_call", "look")
        assert json.loads(call["arguments"]) == {"city": "Rome"}
        assert [reasoning_text(item) for item in rest[:1]] == ["And more."] * bool(ending)
        assert output_text({"output": rest[1:]}) == ending.partition("{end}")[2]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "cloudless"}
        then = {"previous_response_id": response["id"], "input": [result]}
        answer = (await scripted.respond(**then, **more))[-1]["response"]
        assert output_text(answer) == ANSWER
        assert "cloudless" in scripted.text.decode(scripted.device.read_ids)


@pytest.mark.parametrize(
    "rules", [{"tool_choice": "none"}, {"parallel_tool_calls": False}, {"tools": []}]
)
async def test_call_within_reasoning_is_reasoning_where_no_call_is_free(rules: JsonEvent) -> None:
    output = CALLS_IN_THOUGHTS["qwen3"] + "</think>It is sunny."
    async with scripted_server("qwen3", output) as scripted:
        more = {"tools": [LOOK], "reasoning": {"effort": "high"}, **rules}
        response = (await scripted.respond(input=QUESTION, **more))[-1]["response"]
        thought, answer = response["output"]
        assert '"city": "Rome"' in reasoning_text(thought)
        assert output_text({"output": [answer]}) == "It is sunny."

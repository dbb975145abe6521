"""A small random model that thinks: real logits, with the tokenizer and the template of Qwen 3.5,
whose header opens the reasoning."""

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from continuo.engine import EngineClient, EngineConfig
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.support import transformers_oracle as oracle
from tests.support.checkpoints import family_folder, family_text
from tests.support.clients import (
    ACME,
    FINAL_EVENT_TYPES,
    JsonEvent,
    connect_responses,
    output_text,
)
from tests.support.web_servers import RunningServer, serve_engine

pytestmark = [pytest.mark.slow, pytest.mark.torch]

FAMILY = "qwen3_5"
BOUND = 8
MARKUP = ("<think>", "</think>")


def save_model(folder: Path) -> Path:
    text = family_text(FAMILY)
    size = -(-text.vocab_size // 16) * 16
    sizes = oracle.NATIVE_SIZES | {"vocab_size": size, "eos_token_id": text.stop_ids[0]}
    oracle.FAMILIES["qwen3"](**sizes).save_pretrained(folder)
    for file in family_folder(FAMILY).iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    model = str(save_model(tmp_path))
    engine = await EngineClient.start(
        EngineConfig(model=model, device="cpu", dtype="float32", threads=1)
    )
    store = await open_store("sqlite://:memory:", "normal")
    settings = GatewaySettings(served_model_name=("demo",))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        stack.push_async_callback(engine.stop)
        yield await stack.enter_async_context(serve_engine(engine, settings, store))


async def respond(server: RunningServer, **more: Any) -> JsonEvent:
    async with connect_responses(server) as client:
        await client.send(input="Hello?", max_output_tokens=24, temperature=0, **more)
        return (await client.receive_until(*FINAL_EVENT_TYPES))[-1]["response"]


async def speak(server: RunningServer, reasoning: JsonEvent) -> list[JsonEvent]:
    """Have a turn in a Realtime session. Returns the events of its response."""
    item = {"role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
    session = {"type": "realtime", "include": ["response.reasoning_text"], "reasoning": reasoning}
    async with connect(
        f"ws://127.0.0.1:{server.port}/v1/realtime", additional_headers=ACME
    ) as socket:
        for event in (
            {"type": "session.update", "session": session},
            {"type": "conversation.item.create", "item": {"type": "message", **item}},
            {"type": "response.create", "response": {"max_output_tokens": 24}},
        ):
            await socket.send(json.dumps(event))
        events: list[JsonEvent] = []
        async for frame in socket:
            events.append(json.loads(frame))
            assert events[-1]["type"] != "error", events[-1]
            if events[-1]["type"] == "response.done":
                break
    return events


async def chat(server: RunningServer, **more: Any) -> JsonEvent:
    messages = [{"role": "user", "content": "Hello?"}]
    body = {"model": "demo", "max_tokens": 24, "temperature": 0, "messages": messages, **more}
    status, answer = await server.request("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]


async def test_bound_ends_the_reasoning_of_a_model(server: RunningServer) -> None:
    response = await respond(server, reasoning={"effort": "high", "max_tokens": BOUND})
    thought, message = response["output"]
    assert (thought["type"], message["type"]) == ("reasoning", "message")
    usage = response["usage"]["output_tokens_details"]
    assert BOUND <= usage["reasoning_tokens"] <= BOUND + 1
    spoken = output_text({"output": [message]})
    assert spoken
    assert not any(mark in json.dumps(response["output"]) for mark in MARKUP)
    bounded = {"reasoning_effort": "high", "thinking_budget": BOUND}
    answer = await chat(server, chat_template_kwargs=bounded)
    assert answer["reasoning_content"] == "".join(part["text"] for part in thought["content"])


async def test_model_does_not_think_where_it_is_switched_off(server: RunningServer) -> None:
    for more in ({"reasoning": {"effort": "none"}}, {"enable_thinking": False}):
        [message] = (await respond(server, **more))["output"]
        assert message["type"] == "message"
    answer = await chat(server, chat_template_kwargs={"enable_thinking": False})
    assert not answer.get("reasoning_content")
    assert answer["content"] == output_text({"output": [message]})


async def test_session_thinks_only_if_it_is_asked_to(server: RunningServer) -> None:
    thinking = await speak(server, {"effort": "high", "max_tokens": BOUND})
    silent = await speak(server, {})
    for events, thinks in ((thinking, True), (silent, False)):
        kinds = {event["type"] for event in events if event["type"].endswith("text.delta")}
        assert "response.output_text.delta" in kinds
        assert ("response.reasoning_text.delta" in kinds) == thinks
        assert not any(mark in json.dumps(events) for mark in MARKUP)

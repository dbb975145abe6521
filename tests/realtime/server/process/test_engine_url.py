"""Tests of `continuo serve --engine-url`: a conversation on a fake of each server, and its loss."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.ports import free_port
from tests.support.processes import (
    http_status,
    read_gateway_url,
    running_process,
    wait_ready,
)
from tests.support.upstream_engines import demo_fake
from tests.support.upstream_servers import FakeLlama, FakeServer, FakeVllm, serve_fake

pytestmark = pytest.mark.process

SERVE = ("serve", "--port", "0", "--no-web", "--store", "memory")


async def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    http_url = re.sub(r"^ws(.*)/v1/realtime$", r"http\1", url) + path
    request = Request(http_url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def send() -> dict[str, Any]:
        with urlopen(request, timeout=30) as response:
            return json.load(response)

    return await asyncio.to_thread(send)


@pytest.mark.parametrize("kind", [FakeVllm, FakeLlama])
async def test_conversation_runs_on_another_server(kind: type[FakeServer]) -> None:
    fake = demo_fake(kind())
    async with serve_fake(fake) as server_url:
        with running_process(*SERVE, "--engine-url", server_url) as gateway:
            url = await asyncio.to_thread(read_gateway_url, gateway)
            first = await post(
                url, "/v1/responses", {"model": "demo", "input": "Hi", "max_output_tokens": 8}
            )
            second = {"model": "demo", "input": "And?", "max_output_tokens": 8}
            answer = await post(
                url, "/v1/responses", second | {"previous_response_id": first["id"]}
            )
            assert answer["usage"]["output_tokens"] == 8
    prompts = [body["prompt"] for body in fake.requests if not fake.is_prefill(body)]
    assert prompts[1][: len(prompts[0])] == prompts[0], "the second turn continues the first"


async def test_forced_call_is_refused_at_once_on_llama_server() -> None:
    async with serve_fake(demo_fake(FakeLlama())) as server_url:
        with running_process(*SERVE, "--engine-url", server_url) as gateway:
            url = await asyncio.to_thread(read_gateway_url, gateway)
            tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
            body = {"model": "demo", "input": "Hi", "tools": [tool], "tool_choice": "required"}
            with pytest.raises(HTTPError) as refused:
                await post(url, "/v1/responses", body)
            error = json.load(refused.value)["error"]
            assert (refused.value.code, error["param"]) == (400, "tool_choice")
            assert "llama-server b11434-fake enforces JSON schemas alone" in error["message"]


async def test_server_that_is_away_makes_the_gateway_unready_until_it_is_back() -> None:
    fake, port = demo_fake(FakeVllm()), free_port()
    server_url = f"http://127.0.0.1:{port}"
    with running_process(*SERVE, "--engine-url", server_url) as gateway:
        await asyncio.to_thread(gateway.wait_for_output, "(waiting for the server at .*)")
        async with serve_fake(fake, port):
            url = await asyncio.to_thread(read_gateway_url, gateway)
            await wait_ready(url)
        await wait_ready(url, 503)
        assert await http_status(url, "/health/live") == 200
        async with serve_fake(fake, port):
            await wait_ready(url)


async def test_key_file_and_refusal_reach_the_engine_alone(tmp_path: Path) -> None:
    fake = demo_fake(FakeVllm())
    fake.api_key = "right"
    key = tmp_path / "key"
    key.write_text("wrong")
    options = ("--engine-api-key-file", str(key))
    async with serve_fake(fake) as server_url:
        command = ("engine", "--listen", "127.0.0.1:0", "--engine-url", server_url, *options)
        with running_process(*command) as engine:
            assert await engine.wait_exit() == 1
            assert "invalid API key" in engine.output
        key.write_text("right")
        with running_process(*command) as engine:
            ready = await asyncio.to_thread(engine.wait_for_output, "(Ready after .*)")
            assert "demo on vLLM 0.32.0" in ready

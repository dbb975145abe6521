"""POST /v1/completions on the null device: text, ids, several prompts, streams, refusals."""

import asyncio
import json
import time
from typing import Any

import pytest

from continuo.realtime.limits import TenantLimits
from continuo.realtime.protocol.completions_api import CompletionEncoder, Output
from continuo.realtime.protocol.response import TokenLogprob, Usage
from tests.realtime.responses.test_responses_http import streaming
from tests.realtime.server.http.test_sglang import Api
from tests.support.engines import EngineHarness
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, RunningServer, encode_request


async def complete(server: RunningServer, **body: Any) -> dict[str, Any]:
    body = {"model": "demo", "prompt": "hello", "max_tokens": 12, **body}
    status, response = await server.request("POST", "/v1/completions", body)
    assert status == 200, response
    return response


async def test_text_and_its_ids_have_the_same_completion(
    server: RunningServer, harness: EngineHarness
) -> None:
    of_text = await complete(server)
    assert of_text["object"] == "text_completion"
    ids = harness.engine.text.encode("hello")
    of_ids = await complete(server, prompt=ids)
    assert of_ids["choices"] == of_text["choices"]
    assert of_text["usage"]["prompt_tokens"] == len(ids)
    assert of_ids["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "KV is reused"


async def test_several_prompts_are_completed_in_order(server: RunningServer) -> None:
    single = [await complete(server, prompt=prompt) for prompt in ("one", "two", "three")]
    both = await complete(server, prompt=["one", "two", "three"])
    assert [choice["text"] for choice in both["choices"]] == [
        response["choices"][0]["text"] for response in single
    ]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2]
    assert both["usage"]["completion_tokens"] == sum(
        response["usage"]["completion_tokens"] for response in single
    )


@pytest.mark.parametrize("prompt", ["hello", ["one", "two"]])
async def test_stream_has_the_text_and_the_usage(server: RunningServer, prompt: Any) -> None:
    whole = await complete(server, prompt=prompt)
    body = {"prompt": prompt, "max_tokens": 12, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = list[Any]()
    async with streaming(server, "POST", "/v1/completions", body) as received:
        async for _, data in received:
            if data == "[DONE]":
                break
            events.append(json.loads(data))
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        own = [
            one for event in events for one in event["choices"] if one["index"] == choice["index"]
        ]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_abort_all_ends_completions(
    server: RunningServer, harness: EngineHarness, is_waiting: bool
) -> None:
    slots = server.registry.tenants.of("acme").turns
    if is_waiting:
        slots.set_limits(TenantLimits(running_responses_max=1))
        slots.enter()
    harness.runner.step_s = 5 * SLOW_STEP_S
    running = asyncio.create_task(complete(server, max_tokens=300))
    await wait_until(lambda: (slots.waiting_count if is_waiting else slots.running_count) == 1)
    assert (await Api(server).post("/abort_request", {"rid": "", "abort_all": True}))[0] == 200
    response = await running
    assert response["choices"][0]["finish_reason"] == "abort"
    assert response["usage"]["completion_tokens"] < 300


async def test_logprobs_and_echo(server: RunningServer) -> None:
    (choice,) = (await complete(server, logprobs=2))["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    assert logprobs["text_offset"] == list(range(len(choice["text"])))
    (echoed,) = (await complete(server, echo=True))["choices"]
    assert echoed["text"] == "hello" + choice["text"]


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_args: object) -> list[int]:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(type(server.app.state.responses._engine.text), "encode", encode)
    for path, body in (
        ("/v1/completions", {"prompt": "x" * 500_000}),
        ("/generate", {"text": "x" * 500_000}),
    ):
        status, response = await server.request("POST", path, body)
        assert (status, response["error"]["code"]) == (400, "context_length_exceeded")
        assert "characters of text, at least" in response["error"]["message"]


def test_log_probabilities_of_a_long_output_are_encoded_in_linear_time() -> None:
    tokens = [TokenLogprob(b"ab", -1.0, ((b"c", -2.0),))] * 60_000
    output = Output(index=0, text="ab" * 60_000, logprobs=tokens, offset=5, finish="stop")
    began_s = time.process_time()
    completion = CompletionEncoder("cmpl", "demo", 0).encode_completion([output], Usage())
    assert time.process_time() - began_s < 5, "quadratic, it takes minutes"
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset == list(range(5, 5 + 2 * 60_000, 2))


async def test_client_that_disconnects_cancels_its_turn(
    server: RunningServer, harness: EngineHarness
) -> None:
    body = {"prompt": "hello", "ignore_eos": True, "max_tokens": 300, "stream": True}
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request("POST", "/v1/completions", body, ACME))
    async with asyncio.timeout(10):
        while not harness.engine.fleet.active_turns:
            await asyncio.sleep(0.001)
        writer.close()
        while await harness.engine.fleet.list_sessions():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": None}, "invalid_type", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": [[1, 2], "x", {}]}, "invalid_value", "prompt"),
        ({"prompt": [1, 99999]}, "invalid_value", "prompt[1]"),
        ({"prompt": "x" * 500}, "context_length_exceeded", "prompt"),
        ({"prompt": ["x", "x" * 500]}, "context_length_exceeded", "prompt[1]"),
        ({"prompt": ["x" * 100_000] * 50}, "string_above_max_length", "prompt"),
        ({"n": 2}, "integer_above_max_value", "n"),
        ({"best_of": 2}, "integer_above_max_value", "best_of"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"echo": True, "logprobs": 1}, "unsupported_value", "echo"),
        ({"model": "other"}, "model_not_found", "model"),
    ],
)
async def test_invalid_request_is_refused_by_name(
    server: RunningServer, body: dict[str, Any], code: str, param: str
) -> None:
    body = {"prompt": "hello", **body}
    status, response = await server.request("POST", "/v1/completions", body)
    assert (response["error"]["code"], response["error"]["param"]) == (code, param)
    assert status in (400, 404)

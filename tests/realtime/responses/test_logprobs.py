"""Log-probabilities of output tokens, in chat completions and the Responses API, whole and
streamed."""

import json
import math
from typing import Any

import pytest

from tests.realtime.responses.test_responses_http import streaming
from tests.support.clients import ResponsesClient
from tests.support.web_servers import RunningServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12}
REQUEST: dict[str, Any] = {"input": "hello", "max_output_tokens": 12}


def check_tokens(tokens: list[dict[str, Any]], text: str, top: int) -> None:
    """Check that the tokens spell the text, and that each is at most as likely as the likeliest."""
    assert tokens
    assert "".join(token["token"] for token in tokens) == text
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == text
    for token in tokens:
        likeliest = [other["logprob"] for other in token["top_logprobs"]]
        assert len(likeliest) == top
        assert likeliest == sorted(likeliest, reverse=True)
        assert math.isclose(token["logprob"], likeliest[0]) if top else token["logprob"] <= 0


async def complete(server: RunningServer, **body: object) -> dict[str, Any]:
    status, response = await server.request("POST", "/v1/chat/completions", {**CHAT, **body})
    assert status == 200, response
    return response["choices"][0]


@pytest.mark.parametrize("top", [0, 3])
async def test_chat_completion_reports_logprobs(server: RunningServer, top: int) -> None:
    choice = await complete(server, logprobs=True, top_logprobs=top)
    check_tokens(choice["logprobs"]["content"], choice["message"]["content"], top)
    assert (await complete(server))["logprobs"] is None


async def test_chat_chunks_have_the_logprobs_of_their_text(server: RunningServer) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2, "stream": True}
    texts, tokens = "", list[dict[str, Any]]()
    async with streaming(server, "POST", "/v1/chat/completions", body) as events:
        async for _, data in events:
            if data == "[DONE]":
                break
            choice = json.loads(data)["choices"][0]
            texts += choice["delta"].get("content", "")
            tokens += (choice["logprobs"] or {"content": []})["content"]
    check_tokens(tokens, texts, 2)
    whole = await complete(server, logprobs=True, top_logprobs=2)
    assert tokens == whole["logprobs"]["content"], "greedy output is the same, whole or streamed"


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 4}, 4),
        ({"top_logprobs": 1}, 1),
    ],
)
async def test_response_reports_logprobs(
    server: RunningServer, fields: dict[str, Any], top: int
) -> None:
    status, response = await server.request("POST", "/v1/responses", {**REQUEST, **fields})
    assert (status, response["top_logprobs"]) == (200, top)
    (part,) = response["output"][0]["content"]
    check_tokens(part["logprobs"], part["text"], top)
    _, stored = await server.request("GET", f"/v1/responses/{response['id']}")
    assert stored["output"] == response["output"], "they are stored with the response"


async def test_response_events_have_the_logprobs_of_their_text(client: ResponsesClient) -> None:
    await client.send("response.create", **REQUEST, top_logprobs=2)
    events = await client.receive_until("response.completed", "response.incomplete")
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    tokens = [token for event in deltas for token in event["logprobs"]]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    check_tokens(tokens, done["text"], 2)
    assert done["logprobs"] == tokens
    part = events[-1]["response"]["output"][0]["content"][0]
    assert part["logprobs"] == tokens


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("chat/completions", {"n": 2}, "integer_above_max_value", "n"),
        ("chat/completions", {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        (
            "chat/completions",
            {"logprobs": True, "top_logprobs": 21},
            "integer_above_max_value",
            "top_logprobs",
        ),
        ("chat/completions", {"logit_bias": {"9999": 1}}, "invalid_value", "logit_bias"),
        ("chat/completions", {"logit_bias": {"1": 101}}, "decimal_above_max_value", None),
        ("chat/completions", {"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ("chat/completions", {"function_call": "auto"}, "unsupported_parameter", "function_call"),
        ("chat/completions", {"modalities": ["audio"]}, "unsupported_value", "modalities"),
        (
            "chat/completions",
            {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
            "unsupported_value",
            "tools[0].type",
        ),
        (
            "responses",
            {"tools": [{"type": "custom", "name": "x"}]},
            "unsupported_value",
            "tools[0].type",
        ),
    ],
)
async def test_unsupported_request_is_refused_by_name(
    server: RunningServer, path: str, body: dict[str, Any], code: str, param: str | None
) -> None:
    base = CHAT if path.startswith("chat") else REQUEST
    status, response = await server.request("POST", f"/v1/{path}", {**base, **body})
    assert (status, response["error"]["code"]) == (400, code)
    assert param in (None, response["error"]["param"])

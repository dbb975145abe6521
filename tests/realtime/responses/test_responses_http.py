"""The Responses API and chat completions over HTTP: a real server and the null device."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.client import connection
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store, open_store
from tests.support.clients import (
    FINAL_EVENT_TYPES,
    JsonEvent,
    cached_tokens,
    connect_responses,
    output_text,
)
from tests.support.engines import EngineHarness
from tests.support.store_refusals import locked_sqlite
from tests.support.web_servers import (
    TENANTS,
    UMBRELLA,
    RunningServer,
    encode_request,
    serve_harness,
)

pytestmark = pytest.mark.slow

LIMITS = Limits(response_frame_bytes_max=4000)
LONG: JsonEvent = {"input": "hello", "ignore_eos": True, "max_output_tokens": 300}


@pytest.fixture
def engine_options() -> dict[str, Any]:
    return {"pages": 512, "step_s": 0.002}


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    return GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=LIMITS)


async def post(server: RunningServer, **body: object) -> JsonEvent:
    body = {"max_output_tokens": 4, **body}
    status, response = await server.request("POST", "/v1/responses", body)
    assert status == 200, response
    return response


@contextlib.asynccontextmanager
async def streaming(
    server: RunningServer, method: str, path: str, body: object = None
) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
    """Send a request. Yields the server-sent events of the response, (event, data) each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request(method, path, body))
    received = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert " 200 " in received.splitlines()[0], received
    assert "content-type: text/event-stream" in received

    async def events() -> AsyncIterator[tuple[str, str]]:
        name = ""
        while line := await asyncio.wait_for(reader.readline(), 20):
            text = line.decode().rstrip("\r\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                yield name, text.removeprefix("data: ")

    try:
        yield events()
    finally:
        writer.close()


async def all_events(
    server: RunningServer, method: str, path: str, body: object = None
) -> list[tuple[str, str]]:
    async with streaming(server, method, path, body) as events:
        return [event async for event in events]


# ---------------------------------------------------------------- responses


async def test_response_is_returned_and_retrieved_as_json(server: RunningServer) -> None:
    response = await post(server, input="hello", instructions="be kind")
    assert (response["object"], response["store"]) == ("response", True)
    assert output_text(response)
    status, retrieved = await server.request("GET", f"/v1/responses/{response['id']}")
    assert (status, retrieved) == (200, response)


async def test_response_is_streamed_as_server_sent_events(server: RunningServer) -> None:
    events = await all_events(
        server, "POST", "/v1/responses", {"input": "hi", "stream": True, "max_output_tokens": 3}
    )
    bodies = [json.loads(data) for _, data in events]
    assert [name for name, _ in events] == [body["type"] for body in bodies]
    assert [body["sequence_number"] for body in bodies] == list(range(len(bodies)))
    assert bodies[0]["type"] == "response.created"
    assert bodies[-1]["type"] in FINAL_EVENT_TYPES


async def test_response_is_continued_over_http_and_websocket(
    server: RunningServer, harness: EngineHarness
) -> None:
    first = await post(server, input="hello")
    second = await post(server, input="on", previous_response_id=first["id"])
    assert cached_tokens(second) == first["usage"]["total_tokens"] - 1
    assert len(await harness.engine.fleet.list_sessions()) == 1, "not the same engine session"
    async with connect_responses(server) as client:
        third = await client.create_response("on", previous_response_id=second["id"])
    assert cached_tokens(third) == second["usage"]["total_tokens"] - 1, (
        "HTTP and WebSocket do not share their state"
    )


async def test_response_to_be_stored_is_503_while_the_store_is_down(
    harness: EngineHarness, gateway_settings: GatewaySettings, tmp_path: Path
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/store.db")
    async with serve_harness(harness, gateway_settings, store) as server:
        async with locked_sqlite(tmp_path / "store.db", store):
            for fields in ({}, {"store": True}, {"store": True, "stream": True}):
                body = {"model": "demo", "input": "hello", **fields}
                status, refused = await server.request("POST", "/v1/responses", body)
                assert (status, refused["error"]["code"]) == (503, "store_unavailable"), refused
            assert (await harness.engine.fleet.stats()).tokens_drawn == 0, "nothing was generated"
            assert output_text(await post(server, input="hello", store=False))
        assert (await post(server, input="hello"))["store"] is True
    await store.aclose()


async def test_unstored_response_is_not_found(
    server: RunningServer, harness: EngineHarness
) -> None:
    first = await post(server, input="hello", store=False)
    status, body = await server.request("GET", f"/v1/responses/{first['id']}")
    assert (status, body["error"]["code"]) == (404, "response_not_found")
    request = {"input": "on", "previous_response_id": first["id"]}
    status, body = await server.request("POST", "/v1/responses", request)
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_stream_starts_after_a_sequence_number(server: RunningServer) -> None:
    body = {"input": "hi", "stream": True, "max_output_tokens": 5}
    events = await all_events(server, "POST", "/v1/responses", body)
    id = json.loads(events[0][1])["response"]["id"]
    path = f"/v1/responses/{id}?stream=true"
    assert await all_events(server, "GET", path) == events
    assert await all_events(server, "GET", f"{path}&starting_after=4") == events[5:]
    assert await all_events(server, "GET", f"{path}&starting_after=99") == []
    status, body = await server.request("GET", f"{path}&starting_after=x")
    assert (status, body["error"]["param"]) == (400, "starting_after")


async def test_interrupted_stream_is_resumed_while_the_response_runs(
    server: RunningServer,
) -> None:
    """A reader disconnects in the middle; another one resumes after the last event read."""
    seen: list[tuple[str, str]] = []
    body = {**LONG, "stream": True, "max_output_tokens": 60}
    async with streaming(server, "POST", "/v1/responses", body) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 8:
                break
    id = json.loads(seen[0][1])["response"]["id"]
    path = f"/v1/responses/{id}?stream=true&starting_after=7"
    seen += await all_events(server, "GET", path)
    bodies = [json.loads(data) for _, data in seen]
    assert [body["sequence_number"] for body in bodies] == list(range(len(bodies)))
    streamed = "".join(body.get("delta", "") for body in bodies)
    assert streamed == output_text(bodies[-1]["response"])
    assert bodies[-1]["response"]["usage"]["output_tokens"] == 60


async def test_unread_response_is_cancelled_after_a_grace_period(harness: EngineHarness) -> None:
    limits = Limits(unread_response_grace_s=0.02)
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=limits)
    async with serve_harness(harness, settings) as server:
        async with streaming(server, "POST", "/v1/responses", {**LONG, "stream": True}) as events:
            id = json.loads((await anext(events))[1])["response"]["id"]
        async with asyncio.timeout(20):
            while True:
                _, response = await server.request("GET", f"/v1/responses/{id}")
                if response["status"] != "in_progress":
                    break
                await asyncio.sleep(0.05)
    assert response["incomplete_details"] == {"reason": "cancelled"}


async def test_disconnect_cancels_an_unstored_response(
    server: RunningServer, harness: EngineHarness
) -> None:
    body = {**LONG, "stream": True, "store": False}
    async with streaming(server, "POST", "/v1/responses", body) as events:
        await anext(events)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request("POST", "/v1/responses", {**LONG, "store": False}))
    async with asyncio.timeout(20):
        while not await harness.engine.fleet.list_sessions():
            await asyncio.sleep(0.01)
        writer.close()
        while await harness.engine.fleet.list_sessions():
            await asyncio.sleep(0.01)


async def test_background_response_is_cancelled_over_http(server: RunningServer) -> None:
    running_response = await post(server, **LONG, background=True)
    assert (running_response["status"], running_response["background"]) == ("in_progress", True)
    status, ended = await server.request("POST", f"/v1/responses/{running_response['id']}/cancel")
    assert (status, ended["status"], ended["incomplete_details"]) == (200, "cancelled", None)
    _, later = await server.request("GET", f"/v1/responses/{running_response['id']}")
    assert later == ended


async def test_deleted_response_is_not_found(server: RunningServer) -> None:
    response = await post(server, input="hello")
    path = f"/v1/responses/{response['id']}"
    status, body = await server.request("DELETE", path)
    assert (status, body) == (200, {"id": response["id"], "object": "response", "deleted": True})
    for method in ("GET", "DELETE"):
        status, body = await server.request(method, path)
        assert (status, body["error"]["code"]) == (404, "response_not_found")
    request = {"input": "on", "previous_response_id": response["id"]}
    status, body = await server.request("POST", "/v1/responses", request)
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_response_of_another_tenant_is_reported_as_not_found(server: RunningServer) -> None:
    response = await post(server, input="hello")
    active = await post(server, **LONG, background=True)
    for id in (response["id"], active["id"]):
        path = f"/v1/responses/{id}"
        for method, target in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            refused = await server.request(method, target, headers=UMBRELLA)
            unknown = await server.request(method, target.replace(id, "resp_x"), headers=UMBRELLA)
            refused[1]["error"]["message"] = unknown[1]["error"]["message"]
            assert refused == unknown
            assert refused[0] == 404
    status, _ = await server.request("GET", f"/v1/responses/{response['id']}")
    assert status == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        ({}, 400, "missing_required_parameter"),
        ({"input": "x", "model": "gpt-99"}, 404, "model_not_found"),
        ({"input": "x", "top_p": 0}, 400, "decimal_below_min_value"),
        ({"input": "x" * 5000}, 413, "body_too_large"),
    ],
)
async def test_invalid_response_bodies_are_refused(
    server: RunningServer, body: object, status: int, code: str
) -> None:
    actual_status, refused = await server.request("POST", "/v1/responses", body)
    assert (actual_status, refused["error"]["code"]) == (status, code)


def nested(depth: int) -> str:
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize(("depth", "status"), [(100, 200), (101, 400), (480, 400), (960, 400)])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_tools_nested_too_deeply_are_refused(
    server: RunningServer, path: str, depth: int, status: int
) -> None:
    function = {"name": "look", "parameters": "NESTED"}
    body = (
        {"input": "hello", "max_output_tokens": 2, "tools": [{"type": "function", **function}]}
        if path == "/v1/responses"
        else {
            "model": "demo",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 2,
            "tools": [{"type": "function", "function": function}],
        }
    )
    sent = json.dumps(body).replace('"NESTED"', nested(depth)).encode()
    received_status, received = await server.request("POST", path, sent)
    assert received_status == status, received
    if depth == 960:
        assert received["error"]["message"] == "The body is nested too deeply."
    elif status == 400:
        assert received["error"]["param"] == "tools"
        assert received["error"]["code"] == "invalid_function_parameters"
        assert f"{depth} objects and arrays" in received["error"]["message"]
        assert "the limit is 100" in received["error"]["message"]


@pytest.mark.parametrize(("depth", "status"), [(100, 200), (101, 400), (480, 400), (900, 400)])
async def test_arguments_nested_too_deeply_are_refused(
    server: RunningServer, depth: int, status: int
) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look"}
    call["arguments"] = nested(depth)
    output = {"type": "function_call_output", "call_id": "c", "output": "a door"}
    body = {"input": [call, output], "max_output_tokens": 2}
    received_status, received = await server.request("POST", "/v1/responses", body)
    assert received_status == status, received
    if status == 400:
        assert received["error"]["param"] == "input"
        assert f"{depth} objects and arrays" in received["error"]["message"]


async def test_requests_need_a_full_api_key(server: RunningServer) -> None:
    for method, path in (
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/chat/completions"),
    ):
        status, response = await server.request(method, path, {}, headers={})
        assert (status, response["error"]["code"]) == (401, "missing_api_key")
    status, secret = await server.request("POST", "/v1/realtime/client_secrets", {})
    ephemeral = {"Authorization": f"Bearer {secret['value']}"}
    status, response = await server.request("POST", "/v1/responses", {}, headers=ephemeral)
    assert (status, response["error"]["code"]) == (403, "ephemeral_key")


# ---------------------------------------------------------------- chat completions


async def complete(server: RunningServer, **body: object) -> JsonEvent:
    status, completion = await server.request(
        "POST", "/v1/chat/completions", {"max_completion_tokens": 4, **body}
    )
    assert status == 200, completion
    return completion


async def test_chat_completion_generates_the_text_of_the_responses_api(
    server: RunningServer, harness: EngineHarness
) -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    completion = await complete(server, messages=messages)
    [choice] = completion["choices"]
    assert (completion["object"], completion["model"]) == ("chat.completion", "demo")
    assert choice["finish_reason"] in ("length", "stop")
    response = await post(server, input="hello", instructions="be kind", store=False)
    assert choice["message"]["content"] == output_text(response), (
        "the two APIs generated different texts"
    )
    assert await harness.engine.fleet.list_sessions() == [], "an engine session was kept"


async def test_chat_history_sent_again_reuses_kv(server: RunningServer) -> None:
    messages: list[JsonEvent] = [{"role": "user", "content": "hello, how are you today?"}]
    first = await complete(server, messages=messages)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    second = await complete(server, messages=messages)
    cached_tokens = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached_tokens >= first["usage"]["total_tokens"] // 4 * 4 - 4


async def test_chat_completion_is_streamed_in_chunks(server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 4,
    }
    events = await all_events(server, "POST", "/v1/chat/completions", body)
    assert events[-1] == ("", "[DONE]")
    chunks = [json.loads(data) for _, data in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[-2]["choices"][0]["finish_reason"] in ("length", "stop")
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    unstreamed = await complete(server, messages=body["messages"])
    assert streamed == unstreamed["choices"][0]["message"]["content"]


async def test_chat_completion_accepts_tools_and_their_results(server: RunningServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    response = await complete(
        server,
        messages=[
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        tools=[tool, {"type": "mcp", "server_label": "x"}],
        tool_choice="auto",
    )
    assert response["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "messages"),
        ({"messages": []}, "array_below_min_length", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "invalid_value", "messages[0].role"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "n": 2},
            "integer_above_max_value",
            "n",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 500}]},
            "context_length_exceeded",
            "messages",
        ),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                },
            },
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
            },
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tool_choice": "always"},
            "invalid_value",
            "tool_choice",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"},
            "invalid_value",
            "tool_choice",
        ),
    ],
)
async def test_invalid_chat_bodies_are_refused(
    server: RunningServer, body: JsonEvent, code: str, param: str
) -> None:
    status, response = await server.request("POST", "/v1/chat/completions", body)
    assert (status, response["error"]["code"], response["error"]["param"]) == (400, code, param)


async def test_internal_error_is_reported_as_500(
    server: RunningServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(response: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "find_response", broken)
    status, body = await server.request("GET", "/v1/responses/resp_none")
    assert (status, body["error"]["type"], body["error"]["code"]) == (
        *(500, "server_error"),
        "server_error",
    )
    await post(server, input="hello")


async def test_request_is_refused_while_no_engine_is_available(
    server: RunningServer, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNAVAILABLE_AFTER_S", 0.05)
    harness.launch_allowed.clear()
    harness.kill()
    while harness.engine.fleet.is_available_soon:
        await asyncio.sleep(0.01)
    request = {"model": "demo", "input": "hello", "max_output_tokens": 4}
    status, refused = await server.request("POST", "/v1/responses", request)
    assert (status, refused["error"]["code"]) == (503, "engine_unavailable")
    harness.launch_allowed.set()
    while not harness.engine.fleet.is_available:
        await asyncio.sleep(0)
    await post(server, input="hello")

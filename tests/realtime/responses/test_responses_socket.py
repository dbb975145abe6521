"""The Responses API over its WebSocket: a real server, a real socket, the null device."""

import asyncio
import json
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store
from tests.support.clients import (
    FINAL_EVENT_TYPES,
    JsonEvent,
    ResponsesClient,
    cached_tokens,
    connect_responses,
    output_text,
)
from tests.support.engines import EngineHarness, digest_engine
from tests.support.web_servers import UMBRELLA, RunningServer, serve_harness

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


# ---------------------------------------------------------------- events of the server


async def test_server_sends_nothing_before_the_first_request(client: ResponsesClient) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.socket.recv(), 0.2)
    await client.create_response("hi")


async def test_events_of_a_text_response_are_sent_in_order(client: ResponsesClient) -> None:
    await client.send(input="hello", max_output_tokens=3, metadata={"a": "b"})
    events = await client.receive_until(*FINAL_EVENT_TYPES)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 3,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    created, ended = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert ended["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (ended["id"], ended["metadata"]) == (created["id"], {"a": "b"})
    streamed = "".join(event["delta"] for event in events if "delta" in event)
    assert (output_text(ended), events[7]["text"], events[8]["part"]["text"]) == (streamed,) * 3
    assert not any("stream_id" in event for event in events)


async def test_response_object_echoes_its_settings(client: ResponsesClient) -> None:
    response = await client.create_response(
        "hi",
        instructions="be kind",
        tools=[TOOL],
        tool_choice="none",
        parallel_tool_calls=False,
        temperature=0.5,
        top_p=0.9,
        store=False,
    )
    assert response["instructions"] == "be kind"
    assert [tool["name"] for tool in response["tools"]] == ["look_up"]
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("none", False)
    assert (response["temperature"], response["top_p"]) == (0.5, 0.9)
    assert (response["store"], response["model"]) == (False, "demo")
    assert response["usage"]["total_tokens"] == (
        response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
    )


# ---------------------------------------------------------------- requests of clients


async def test_request_keys_without_effect_are_accepted(client: ResponsesClient) -> None:
    response = await client.create_response(
        "hi",
        model="demo",
        stream=True,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        prompt_cache_key="thread-1",
        service_tier="auto",
        client_metadata={"x": 1},
        truncation=None,
        tools=[{"type": "function", "name": "f", "strict": None, "parameters": {"$schema": "x"}}],
    )
    assert response["status"] in ("completed", "incomplete")


async def test_unknown_kinds_of_tools_are_ignored(client: ResponsesClient) -> None:
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}, TOOL]
    response = await client.create_response("hi", tools=tools)
    assert [tool["name"] for tool in response["tools"]] == ["look_up"]
    response = await client.create_response("hi", tools=tools[:2], tool_choice="required")
    assert (response["tools"], response["tool_choice"]) == ([], "auto")


async def test_input_items_in_every_accepted_form_are_equivalent(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    variants = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "y"}]},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "42"},
    ]
    canonical = [
        {"role": "system", "content": [{"type": "input_text", "text": "be kind"}]},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "y"},
        {"type": "function_call", "id": "a", "call_id": "c1", "name": "look_up", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "42"}],
        },
    ]
    one, other = (
        await client.create_response(input=variants),
        await client.create_response(input=canonical),
    )
    assert output_text(one) == output_text(other)
    assert one["usage"]["input_tokens"] == other["usage"]["input_tokens"]
    assert cached_tokens(one) == 0
    tokens = one["usage"]["input_tokens"]
    assert cached_tokens(other) == min(tokens // 4 * 4, tokens - 1), (
        "other than all full pages without the last token"
    )


async def test_invalid_requests_are_refused_with_code_and_param(client: ResponsesClient) -> None:
    invalid: list[tuple[JsonEvent, str, str]] = [
        ({}, "missing_required_parameter", "input"),
        ({"input": [], "generate": True}, "missing_required_parameter", "input"),
        ({"input": [{"content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"type": "function_call"}]}, "missing_required_parameter", "input[0].call_id"),
        ({"input": [{"type": "computer_call"}]}, "invalid_value", "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "invalid_value",
            "input[0].content[0].type",
        ),
        ({"input": "x", "temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"input": "x", "tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0]"),
        (
            {"input": "x", "tool_choice": {"type": "function", "name": "f"}},
            "invalid_value",
            "tool_choice.name",
        ),
        ({"input": "x", "tool_choice": "required"}, "invalid_value", "tool_choice"),
        (
            {"input": "x", "tool_choice": {"type": "allowed_tools", "mode": "required"}},
            "invalid_value",
            "tool_choice",
        ),
        ({"input": "x", "conversation": {}}, "missing_required_parameter", "conversation"),
        ({"input": "x" * 500}, "context_length_exceeded", "input"),
        ({"input": [{"type": "item_reference", "id": "?"}]}, "item_reference_invalid_item_id", ""),
    ]
    for fields, code, param in invalid:
        event = await client.expect_error(**fields)
        assert (event["status"], event["error"]["code"]) == (400, code), event
        assert event["error"]["type"] == "invalid_request_error"
        assert event["error"]["param"].startswith(param)
    await client.create_response("still good")


# ---------------------------------------------------------------- continuation


async def test_latest_response_is_continued_by_prefilling_new_tokens_only(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    response = await client.create_response("hello")
    for n in range(5):
        length = response["usage"]["total_tokens"]
        before = (await harness.engine.fleet.stats()).tokens_computed
        response = await client.create_response(f"more {n}", previous_response_id=response["id"])
        computed = (await harness.engine.fleet.stats()).tokens_computed - before
        assert cached_tokens(response) == length - 1, (
            "all but the id drawn last, which has no KV yet"
        )
        assert computed == response["usage"]["total_tokens"] - length
    infos = await harness.engine.fleet.list_sessions()
    assert len(infos) == 1, "one engine session for all of them"


async def test_older_response_is_continued_on_a_fork_that_shares_kv(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    first = await client.create_response("hello")
    await client.create_response("on", previous_response_id=first["id"])
    repeated = await client.create_response("on", previous_response_id=first["id"])
    other = await client.create_response("off", previous_response_id=first["id"])
    assert cached_tokens(repeated) >= first["usage"]["total_tokens"] - 1
    assert cached_tokens(other) >= first["usage"]["total_tokens"] - 1
    assert len(await harness.engine.fleet.list_sessions()) == 3
    assert output_text(repeated) != output_text(other)


async def test_instructions_and_tools_are_not_inherited(client: ResponsesClient) -> None:
    first = await client.create_response("hello", instructions="be kind", tools=[TOOL])
    without_head = await client.create_response("on", previous_response_id=first["id"])
    assert (without_head["instructions"], without_head["tools"]) == (None, [])
    with_head = await client.create_response(
        "on", previous_response_id=first["id"], instructions="be kind", tools=[TOOL]
    )
    assert with_head["usage"]["input_tokens"] > without_head["usage"]["input_tokens"]
    assert cached_tokens(without_head) < first["usage"]["input_tokens"]


async def test_repeated_instructions_and_tools_reuse_kv(client: ResponsesClient) -> None:
    head = {"instructions": "be kind", "tools": [TOOL]}
    first = await client.create_response("hello", **head)
    second = await client.create_response("on", previous_response_id=first["id"], **head)
    assert cached_tokens(second) == first["usage"]["total_tokens"] - 1


async def test_history_sent_again_is_found_in_the_radix_tree(server: RunningServer) -> None:
    history: list[JsonEvent] = [{"role": "user", "content": "hello there, how are you?"}]
    async with connect_responses(server) as client:
        first = await client.create_response(input=history, store=False)
    history += [
        {"role": "assistant", "content": output_text(first)},
        {"role": "user", "content": "more"},
    ]
    async with connect_responses(server) as client:
        second = await client.create_response(input=history, store=False)
    assert cached_tokens(second) >= first["usage"]["total_tokens"] // 4 * 4 - 4


async def test_generate_false_prefills_without_output(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    await client.send(input="a long beginning " * 8, generate=False)
    events = await client.receive_until(*FINAL_EVENT_TYPES)
    warm = events[-1]["response"]
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]
    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    [session] = await harness.engine.fleet.list_sessions()
    while session.committed < session.length:
        [session] = await harness.engine.fleet.list_sessions()
    assert session.length == warm["usage"]["input_tokens"]
    continued = await client.create_response(input="and", previous_response_id=warm["id"])
    assert cached_tokens(continued) == warm["usage"]["input_tokens"]
    without_input = await client.create_response(input=[], previous_response_id=warm["id"])
    assert without_input["usage"]["output_tokens"] == 4, "a response without more input"


async def test_usage_of_a_warm_up_counts_the_tokens_computed(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    text = "a long beginning " * 8
    await client.create_response(text)
    for prefix, is_cached in ((text, True), ("another " * 16, False)):
        before = await harness.engine.fleet.stats()
        await client.send(input=prefix, generate=False)
        warm = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
        tokens = warm["usage"]["input_tokens"]
        computed = (await harness.engine.fleet.stats()).tokens_computed - before.tokens_computed
        whole_pages, opening = min(tokens // 4 * 4, tokens - 1), 4
        assert cached_tokens(warm) == (whole_pages if is_cached else opening)
        assert computed == tokens - cached_tokens(warm), (
            "the prompt was not prefilled when the warm-up ended"
        )
        assert warm["usage"]["total_tokens"] == tokens


async def test_warm_up_can_be_cancelled(chat_model: Path) -> None:
    async with (
        digest_engine(chat_model, pages=128, max_model_len=400, step_s=0.2) as harness,
        serve_harness(harness, GatewaySettings(served_model_name=("demo",))) as server,
        connect_responses(server) as client,
    ):
        await client.send(input="a long beginning " * 16, generate=False)
        warm = (await client.expect("response.created"))["response"]["id"]
        await client.send("response.cancel", response_id=warm)
        ended = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
        assert ended["incomplete_details"] == {"reason": "cancelled"}
        assert ended["output"] == []


HEAD: JsonEvent = {"instructions": "be kind " * 10, "tools": [TOOL]}


@pytest.mark.parametrize("empty_input", [{"input": []}, {"input": ""}, {}])
@pytest.mark.parametrize("head", [HEAD, {"tools": [TOOL]}, {"instructions": "be kind " * 10}])
async def test_warm_up_without_input_prefills_instructions_and_tools(
    client: ResponsesClient, harness: EngineHarness, empty_input: JsonEvent, head: JsonEvent
) -> None:
    await client.send(generate=False, **empty_input, **head)
    warm = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
    tokens = warm["usage"]["input_tokens"]
    assert (warm["status"], warm["output"], tokens > 0) == ("completed", [], True)
    [session] = await harness.engine.fleet.list_sessions()
    while session.committed < tokens:
        [session] = await harness.engine.fleet.list_sessions()
    computed = (await harness.engine.fleet.stats()).tokens_computed
    assert computed == tokens == session.length
    response = await client.create_response("hello", previous_response_id=warm["id"], **head)
    assert cached_tokens(response) == tokens
    computed = (await harness.engine.fleet.stats()).tokens_computed - computed
    assert computed == response["usage"]["total_tokens"] - 1 - tokens, (
        "the head was prefilled again"
    )
    assert len(await harness.engine.fleet.list_sessions()) == 1, "one engine session for both"


async def test_warm_up_of_nothing_is_a_continuation_point(client: ResponsesClient) -> None:
    await client.send(generate=False)
    warm = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
    assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == ("completed", [], 0)
    after = await client.create_response("hello", previous_response_id=warm["id"])
    without = await client.create_response("hello", store=False)
    assert output_text(after) == output_text(without)
    assert after["usage"]["input_tokens"] == without["usage"]["input_tokens"]


async def test_warm_up_without_input_is_continued_on_another_connection(
    server: RunningServer,
) -> None:
    async with connect_responses(server) as client:
        await client.send(input=[], generate=False, **HEAD)
        warm = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
    async with connect_responses(server) as client:
        response = await client.create_response("hello", previous_response_id=warm["id"], **HEAD)
    assert cached_tokens(response) >= warm["usage"]["input_tokens"]


async def test_item_reference_is_accepted_as_input(client: ResponsesClient) -> None:
    first = await client.create_response("hello")
    item = first["output"][0]["id"]
    reference = {"type": "item_reference", "id": item}
    second = await client.create_response(input=[reference], previous_response_id=first["id"])
    assert second["status"] == "incomplete"


# ---------------------------------------------------------------- across connections


async def test_stored_response_is_continued_on_another_connection(server: RunningServer) -> None:
    async with connect_responses(server) as client:
        first = await client.create_response("hello")
    async with connect_responses(server) as client:
        second = await client.create_response("on", previous_response_id=first["id"])
    assert cached_tokens(second) == first["usage"]["total_tokens"] - 1


async def test_unstored_response_is_known_to_its_connection_only(server: RunningServer) -> None:
    async with (
        connect_responses(server) as client,
        connect_responses(server) as other,
    ):
        first = await client.create_response("hello", store=False)
        refused = await other.expect_error(previous_response_id=first["id"], input="on")
        assert refused["error"]["code"] == "previous_response_not_found"
        await client.create_response("on", previous_response_id=first["id"], store=False)
    async with connect_responses(server) as client:
        refused = await client.expect_error(previous_response_id=first["id"], input="on")
        assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")


async def test_stored_response_is_continued_after_a_restart(
    harness: EngineHarness, gateway_settings: GatewaySettings, server: RunningServer
) -> None:
    async with connect_responses(server) as client:
        first = await client.create_response("hello", store=False, instructions="be kind")
        second = await client.create_response(
            "on", previous_response_id=first["id"], instructions="be kind"
        )
        third = await client.create_response(
            "off", previous_response_id=second["id"], temperature=1, seed=1
        )
        before = await client.create_response(
            "so", previous_response_id=third["id"], instructions="be kind"
        )
    async with (
        serve_harness(harness, gateway_settings) as restarted,
        connect_responses(restarted) as client,
    ):
        restored = await client.create_response(
            "so", previous_response_id=third["id"], instructions="be kind"
        )
        assert output_text(restored) == output_text(before)
        assert restored["usage"]["input_tokens"] == before["usage"]["input_tokens"]
        refused = await client.expect_error(previous_response_id=first["id"], input="on")
        assert refused["error"]["code"] == "previous_response_not_found"


async def test_response_of_another_tenant_is_reported_as_unknown(
    server: RunningServer,
) -> None:
    async with (
        connect_responses(server) as one,
        connect_responses(server, UMBRELLA) as two,
    ):
        response = await one.create_response("hello")
        refused = await two.expect_error(previous_response_id=response["id"], input="on")
        unknown = await two.expect_error(previous_response_id="resp_" + "0" * 20, input="on")
        for event in (refused, unknown):
            event["error"]["message"] = event["error"]["message"].partition("'")[0]
        assert refused == unknown
        not_active = await two.expect_error("response.cancel", response_id=response["id"])
        assert not_active["error"]["code"] == "response_not_active"


async def test_connection_with_an_invalid_key_is_refused(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect_responses(server, {"Authorization": "Bearer key-three"}):
            pass
    assert refused.value.response.status_code == 401


# ---------------------------------------------------------------- bad frames


async def test_unknown_model_is_refused(client: ResponsesClient) -> None:
    event = await client.expect_error(model="gpt-99", input="x")
    assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
    assert "'demo'" in event["error"]["message"]


async def test_bad_frames_are_refused_and_the_connection_stays_usable(
    client: ResponsesClient,
) -> None:
    for frame, code in (
        ("{", "invalid_json"),
        ("[]", "invalid_type"),
        ('{"type": "session.update"}', "invalid_value"),
        ('{"type": "response.create", "input": 3}', "invalid_type"),
        ("[" * 10_000, "invalid_type"),
        ('{"x":' + "[" * 10_000, "invalid_json"),
        ('{"type": "response.create", "stream_id": "", "input": "x"}', "string_below_min_length"),
        ('{"type": "response.create", "input": [' + "1," * 200_000 + "1]}", "frame_too_large"),
    ):
        await client.socket.send(frame)
        event = await client.receive()
        assert (event["type"], event["error"]["code"]) == ("error", code)
    await client.socket.send('{"type": "response.create", "stream_id": "a", "input": 3}')
    assert (await client.receive())["stream_id"] == "a"
    await client.create_response("still good")


async def test_internal_error_is_sent_on_its_stream(
    client: ResponsesClient,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(response: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "find_response", broken)
    event = await client.expect_error(input="x", previous_response_id="resp_none", stream_id="a")
    assert (event["status"], event["stream_id"]) == (500, "a")
    assert (event["error"]["type"], event["error"]["code"]) == ("server_error", "server_error")
    assert "ZeroDivisionError" in caplog.text
    await client.create_response("hello")


async def test_repeated_invalid_json_closes_the_connection(client: ResponsesClient) -> None:
    for _ in range(Limits().bad_frames_max):
        await client.socket.send("{")
    assert await client.wait_close_code() == 1007


async def test_oversized_frames_are_refused_and_larger_ones_close(harness: EngineHarness) -> None:
    limits = Limits(response_frame_bytes_max=2000)
    settings = GatewaySettings(served_model_name=("demo",), limits=limits)
    async with (
        serve_harness(harness, settings) as server,
        connect_responses(server) as client,
    ):
        await client.send(input="x", client_metadata="y" * 2000)
        assert (await client.receive())["error"]["code"] == "frame_too_large"
        await client.create_response("still good")
        await client.socket.send(json.dumps({"x": "y" * 4000}))
        assert await client.wait_close_code() == 1009


async def test_connection_is_closed_at_its_maximum_duration(harness: EngineHarness) -> None:
    settings = GatewaySettings(
        served_model_name=("demo",), limits=Limits(connection_lifetime_s=0.2)
    )
    async with (
        serve_harness(harness, settings) as server,
        connect_responses(server) as client,
    ):
        event = await client.receive()
        assert (event["status"], event["error"]["code"]) == (
            400,
            "websocket_connection_limit_reached",
        )
        assert await client.wait_close_code() == 1000


# ---------------------------------------------------------------- text formats

COLOURS = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 2, "maxItems": 3}


async def test_text_follows_its_json_schema(client: ResponsesClient) -> None:
    """The null device would draw any ids; the token mask leaves those that the schema allows."""
    format = {"type": "json_schema", "name": "colours", "schema": COLOURS, "strict": True}
    for text in ("one", "two", "three"):
        response = await client.create_response(
            text, text={"format": format}, max_output_tokens=100
        )
        colours = json.loads(output_text(response))
        assert 2 <= len(colours) <= 3
        assert set(colours) <= {"red", "blue"}
        assert response["text"]["format"]["schema"] == COLOURS
        assert response["status"] == "completed"


async def test_json_mode_begins_an_object(client: ResponsesClient) -> None:
    """The text may end early, but begins as an object."""
    response = await client.create_response(
        "x", text={"format": {"type": "json_object"}}, max_output_tokens=60
    )
    assert output_text(response).lstrip().startswith("{")


async def test_schema_that_cannot_be_enforced_is_refused(client: ResponsesClient) -> None:
    schema = {"type": "array", "uniqueItems": True}
    format = {"type": "json_schema", "name": "set", "schema": schema}
    error = (await client.expect_error(input="x", text={"format": format}))["error"]
    assert error["param"] == "text.format.schema"
    assert "uniqueItems" in error["message"]
    tool = {**TOOL, "strict": True, "parameters": {"type": "object", "not": {}}}
    error = (await client.expect_error(input="x", tools=[tool]))["error"]
    assert error["param"] == "tools"
    await client.create_response("and on")

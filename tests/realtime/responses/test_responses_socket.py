"""The Responses API over its WebSocket: a real server, a real socket, the engine of digests."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store, open_store
from tests.support.engines import Bench, digest_engine
from tests.support.response_chains import ENDS, Caller, Event, cached, calling, text_of
from tests.support.web_servers import Running, closed, serve

TENANTS = {"key-one": "acme", "key-two": "umbrella"}
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await open_store("sqlite://:memory:")
    yield store
    await store.aclose()


@pytest.fixture
async def running(bench: Bench, store: Store) -> AsyncIterator[Running]:
    async with serve(bench, GatewaySettings(served_model_name=("demo",)), store) as running:
        yield running
    assert await bench.engine.list_sessions() == [], "nothing is left open in the engine"


@pytest.fixture
async def caller(running: Running) -> AsyncIterator[Caller]:
    async with calling(running) as caller:
        yield caller


# ---------------------------------------------------------------- what the server says


async def test_it_says_nothing_until_it_is_asked(caller: Caller) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(caller.socket.recv(), 0.2)
    await caller.turn("hi")


async def test_the_order_of_a_text_response(caller: Caller) -> None:
    await caller.send(input="hello", max_output_tokens=3, metadata={"a": "b"})
    events = await caller.until(*ENDS)
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
    said = "".join(event["delta"] for event in events if "delta" in event)
    assert (text_of(ended), events[7]["text"], events[8]["part"]["text"]) == (said, said, said)
    assert not any("stream_id" in event for event in events)


async def test_a_response_is_what_was_asked_for(caller: Caller) -> None:
    response = await caller.turn(
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


# ---------------------------------------------------------------- what clients send


async def test_keys_that_clients_send_unasked_are_accepted(caller: Caller) -> None:
    response = await caller.turn(
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


async def test_unknown_tools_are_skipped_not_refused(caller: Caller) -> None:
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}, TOOL]
    response = await caller.turn("hi", tools=tools)
    assert [tool["name"] for tool in response["tools"]] == ["look_up"]
    response = await caller.turn("hi", tools=tools[:2], tool_choice="required")
    assert (response["tools"], response["tool_choice"]) == ([], "auto")


async def test_input_items_in_every_spelling(caller: Caller, bench: Bench) -> None:
    spelt = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "y"}]},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "42"},
    ]
    plain = [
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
    one, other = await caller.turn(input=spelt), await caller.turn(input=plain)
    assert text_of(one) == text_of(other)
    assert one["usage"]["input_tokens"] == other["usage"]["input_tokens"]
    assert cached(one) == 0
    last = one["usage"]["input_tokens"] - 1
    assert cached(other) == last // 4 * 4, "all whole pages, without the last token"


async def test_what_is_not_given_is_named(caller: Caller) -> None:
    wrong: list[tuple[Event, str, str]] = [
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
        ({"input": "x", "conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"input": "x" * 500}, "context_length_exceeded", "input"),
        ({"input": [{"type": "item_reference", "id": "?"}]}, "item_reference_invalid_item_id", ""),
    ]
    for fields, code, param in wrong:
        event = await caller.refused(**fields)
        assert (event["status"], event["error"]["code"]) == (400, code), event
        assert event["error"]["type"] == "invalid_request_error"
        assert event["error"]["param"].startswith(param)
    await caller.turn("still good")


# ---------------------------------------------------------------- going on


async def test_the_latest_goes_on_in_o_new_tokens(caller: Caller, bench: Bench) -> None:
    response = await caller.turn("hello")
    for n in range(5):
        length = response["usage"]["total_tokens"]
        before = (await bench.engine.stats()).tokens_computed
        response = await caller.turn(f"more {n}", previous_response_id=response["id"])
        computed = (await bench.engine.stats()).tokens_computed - before
        assert cached(response) == length - 1, "all but the id drawn last, which nothing has read"
        assert computed == response["usage"]["total_tokens"] - length
    assert len(await bench.engine.list_sessions()) == 1, "one engine session for all of them"


async def test_an_older_one_is_forked_and_shares_kv(caller: Caller, bench: Bench) -> None:
    first = await caller.turn("hello")
    await caller.turn("on", previous_response_id=first["id"])
    again = await caller.turn("on", previous_response_id=first["id"])
    other = await caller.turn("off", previous_response_id=first["id"])
    assert cached(again) >= first["usage"]["total_tokens"] - 1
    assert cached(other) >= first["usage"]["total_tokens"] - 1
    assert len(await bench.engine.list_sessions()) == 3
    assert text_of(again) != text_of(other)


async def test_instructions_and_tools_are_not_inherited(caller: Caller) -> None:
    first = await caller.turn("hello", instructions="be kind", tools=[TOOL])
    bare = await caller.turn("on", previous_response_id=first["id"])
    assert (bare["instructions"], bare["tools"]) == (None, [])
    told = await caller.turn(
        "on", previous_response_id=first["id"], instructions="be kind", tools=[TOOL]
    )
    assert told["usage"]["input_tokens"] > bare["usage"]["input_tokens"]
    assert cached(bare) < first["usage"]["input_tokens"]


async def test_the_same_instructions_and_tools_again_reuse_kv(caller: Caller) -> None:
    wish = {"instructions": "be kind", "tools": [TOOL]}
    first = await caller.turn("hello", **wish)
    second = await caller.turn("on", previous_response_id=first["id"], **wish)
    assert cached(second) == first["usage"]["total_tokens"] - 1


async def test_a_whole_history_again_is_found_in_the_tree(running: Running) -> None:
    history: list[Event] = [{"role": "user", "content": "hello there, how are you?"}]
    async with calling(running) as caller:
        first = await caller.turn(input=history, store=False)
    history += [
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "more"},
    ]
    async with calling(running) as caller:
        second = await caller.turn(input=history, store=False)
    assert cached(second) >= first["usage"]["total_tokens"] // 4 * 4 - 4


async def test_warm_up_prefills(caller: Caller, bench: Bench) -> None:
    await caller.send(input="a long beginning " * 8, generate=False)
    events = await caller.until(*ENDS)
    warm = events[-1]["response"]
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]
    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    [session] = await bench.engine.list_sessions()
    while session.committed < session.length:
        [session] = await bench.engine.list_sessions()
    assert session.length == warm["usage"]["input_tokens"]
    hot = await caller.turn(input="and", previous_response_id=warm["id"])
    assert cached(hot) == warm["usage"]["input_tokens"]
    only = await caller.turn(input=[], previous_response_id=warm["id"])
    assert only["usage"]["output_tokens"] == 4, "one may go on without more input"


async def test_usage_of_a_warm_up_is_what_was_computed_for_it(caller: Caller, bench: Bench) -> None:
    text = "a long beginning " * 8
    await caller.turn(text)
    for beginning, found in ((text, True), ("another " * 16, False)):
        before = await bench.engine.stats()
        await caller.send(input=beginning, generate=False)
        warm = (await caller.until(*ENDS))[-1]["response"]
        tokens = warm["usage"]["input_tokens"]
        computed = (await bench.engine.stats()).tokens_computed - before.tokens_computed
        whole_pages, opening = (tokens - 1) // 4 * 4, 4
        assert cached(warm) == (whole_pages if found else opening)
        assert computed == tokens - cached(warm), "all of it is there when it has ended"
        assert warm["usage"]["total_tokens"] == tokens


async def test_a_warm_up_is_cancelled(chatty: Path) -> None:
    settings = GatewaySettings(served_model_name=("demo",))
    async with (
        digest_engine(chatty, pages=128, max_model_len=400, step_s=0.2) as bench,
        serve(bench, settings) as running,
        calling(running) as caller,
    ):
        await caller.send(input="a long beginning " * 16, generate=False)
        [created] = await caller.until("response.created")
        warm = created["response"]["id"]
        await caller.send("response.cancel", response_id=warm)
        ended = (await caller.until(*ENDS))[-1]["response"]
        assert ended["incomplete_details"] == {"reason": "cancelled"}
        assert ended["output"] == []


HEAD: Event = {"instructions": "be kind " * 10, "tools": [TOOL]}


@pytest.mark.parametrize("said", [{"input": []}, {"input": ""}, {}])
@pytest.mark.parametrize("wish", [HEAD, {"tools": [TOOL]}, {"instructions": "be kind " * 10}])
async def test_warm_up_without_input_prefills_what_stands_before_it(
    caller: Caller, bench: Bench, said: Event, wish: Event
) -> None:
    await caller.send(generate=False, **said, **wish)
    warm = (await caller.until(*ENDS))[-1]["response"]
    head = warm["usage"]["input_tokens"]
    assert (warm["status"], warm["output"], head > 0) == ("completed", [], True)
    [session] = await bench.engine.list_sessions()
    while session.committed < head:
        [session] = await bench.engine.list_sessions()
    computed = (await bench.engine.stats()).tokens_computed
    assert computed == head == session.length
    response = await caller.turn("hello", previous_response_id=warm["id"], **wish)
    assert cached(response) == head
    computed = (await bench.engine.stats()).tokens_computed - computed
    assert computed == response["usage"]["total_tokens"] - 1 - head, "nothing of it again"
    assert len(await bench.engine.list_sessions()) == 1, "one engine session for both"


async def test_warm_up_of_nothing_at_all_is_a_point_like_others(caller: Caller) -> None:
    await caller.send(generate=False)
    warm = (await caller.until(*ENDS))[-1]["response"]
    assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == ("completed", [], 0)
    after = await caller.turn("hello", previous_response_id=warm["id"])
    anew = await caller.turn("hello", store=False)
    assert text_of(after) == text_of(anew)
    assert after["usage"]["input_tokens"] == anew["usage"]["input_tokens"]


async def test_warm_up_without_input_goes_on_over_another_connection(running: Running) -> None:
    async with calling(running) as caller:
        await caller.send(input=[], generate=False, **HEAD)
        warm = (await caller.until(*ENDS))[-1]["response"]
    async with calling(running) as caller:
        response = await caller.turn("hello", previous_response_id=warm["id"], **HEAD)
    assert cached(response) >= warm["usage"]["input_tokens"]


async def test_an_item_reference(caller: Caller) -> None:
    first = await caller.turn("hello")
    item = first["output"][0]["id"]
    reference = {"type": "item_reference", "id": item}
    second = await caller.turn(input=[reference], previous_response_id=first["id"])
    assert second["status"] == "incomplete"


# ---------------------------------------------------------------- across connections


async def test_what_is_stored_goes_on_over_another_connection(running: Running) -> None:
    async with calling(running) as caller:
        first = await caller.turn("hello")
    async with calling(running) as caller:
        second = await caller.turn("on", previous_response_id=first["id"])
    assert cached(second) == first["usage"]["total_tokens"] - 1


async def test_what_is_not_stored_is_its_connections_alone(running: Running) -> None:
    async with calling(running) as caller, calling(running) as other:
        first = await caller.turn("hello", store=False)
        gone = await other.refused(previous_response_id=first["id"], input="on")
        assert gone["error"]["code"] == "previous_response_not_found"
        await caller.turn("on", previous_response_id=first["id"], store=False)
    async with calling(running) as caller:
        gone = await caller.refused(previous_response_id=first["id"], input="on")
        assert (gone["status"], gone["error"]["code"]) == (400, "previous_response_not_found")


async def test_what_is_stored_outlives_the_server(
    bench: Bench, store: Store, running: Running
) -> None:
    async with calling(running) as caller:
        first = await caller.turn("hello", store=False, instructions="be kind")
        second = await caller.turn("on", previous_response_id=first["id"], instructions="be kind")
        third = await caller.turn("off", previous_response_id=second["id"], temperature=1, seed=1)
        here = await caller.turn("so", previous_response_id=third["id"], instructions="be kind")
    async with (
        serve(bench, GatewaySettings(served_model_name=("demo",)), store) as after,
        calling(after) as caller,
    ):
        there = await caller.turn("so", previous_response_id=third["id"], instructions="be kind")
        assert text_of(there) == text_of(here)
        assert there["usage"]["input_tokens"] == here["usage"]["input_tokens"]
        gone = await caller.refused(previous_response_id=first["id"], input="on")
        assert gone["error"]["code"] == "previous_response_not_found"


async def test_somebody_elses_response_is_an_unknown_one(bench: Bench, store: Store) -> None:
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))
    async with (
        serve(bench, settings, store) as running,
        calling(running, "key-one") as one,
        calling(running, "key-two") as two,
    ):
        theirs = await one.turn("hello")
        refused = await two.refused(previous_response_id=theirs["id"], input="on")
        unknown = await two.refused(previous_response_id="resp_" + "0" * 20, input="on")
        for event in (refused, unknown):
            event["error"]["message"] = event["error"]["message"].partition("'")[0]
        assert refused == unknown
        not_active = await two.refused("response.cancel", response_id=theirs["id"])
        assert not_active["error"]["code"] == "response_not_active"


async def test_without_a_key_there_is_no_connection(bench: Bench) -> None:
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))
    async with serve(bench, settings) as running:
        with pytest.raises(InvalidStatus) as refused:
            async with calling(running, "key-three"):
                pass
        assert refused.value.response.status_code == 401


# ---------------------------------------------------------------- bad frames


async def test_an_unknown_model(caller: Caller) -> None:
    event = await caller.refused(model="gpt-99", input="x")
    assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
    assert "'demo'" in event["error"]["message"]


async def test_bad_frames_are_answered_and_forgotten(caller: Caller) -> None:
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
        await caller.socket.send(frame)
        event = await caller.recv()
        assert (event["type"], event["error"]["code"]) == ("error", code)
    await caller.socket.send('{"type": "response.create", "stream_id": "a", "input": 3}')
    assert (await caller.recv())["stream_id"] == "a"
    await caller.turn("still good")


async def test_a_fault_of_ours_is_an_error_of_its_lane(
    caller: Caller, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(response: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "find_response", broken)
    event = await caller.refused(input="x", previous_response_id="resp_none", stream_id="a")
    assert (event["status"], event["stream_id"]) == (500, "a")
    assert (event["error"]["type"], event["error"]["code"]) == ("server_error", "server_error")
    assert "ZeroDivisionError" in caplog.text
    await caller.turn("hello")


async def test_frames_that_are_never_json_close_the_call(caller: Caller) -> None:
    for _ in range(Limits().bad_frames_max):
        await caller.socket.send("{")
    assert await closed(caller.socket) == 1007


async def test_frames_have_a_limit(bench: Bench) -> None:
    limits = Limits(response_frame_bytes_max=2000)
    settings = GatewaySettings(served_model_name=("demo",), limits=limits)
    async with serve(bench, settings) as running, calling(running) as caller:
        await caller.send(input="x", client_metadata="y" * 2000)
        assert (await caller.recv())["error"]["code"] == "frame_too_large"
        await caller.turn("still good")
        await caller.socket.send(json.dumps({"x": "y" * 4000}))
        assert await closed(caller.socket) == 1009


async def test_a_connection_has_a_maximum_duration(bench: Bench) -> None:
    settings = GatewaySettings(
        served_model_name=("demo",), limits=Limits(connection_lifetime_s=0.2)
    )
    async with serve(bench, settings) as running, calling(running) as caller:
        event = await caller.recv()
        assert (event["status"], event["error"]["code"]) == (
            400,
            "websocket_connection_limit_reached",
        )
        assert await closed(caller.socket) == 1000


# ---------------------------------------------------------------- what its text shall look like

COLOURS = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 2, "maxItems": 3}


async def test_text_that_follows_a_schema(caller: Caller) -> None:
    """The engine of digests would say anything; it draws what the schema allows."""
    format = {"type": "json_schema", "name": "colours", "schema": COLOURS, "strict": True}
    for text in ("one", "two", "three"):
        response = await caller.turn(text, text={"format": format}, max_output_tokens=100)
        said = json.loads(text_of(response))
        assert 2 <= len(said) <= 3
        assert set(said) <= {"red", "blue"}
        assert response["text"]["format"]["schema"] == COLOURS
        assert response["status"] == "completed"


async def test_json_mode(caller: Caller) -> None:
    """It may be cut off, but it is on its way to an object."""
    response = await caller.turn(
        "x", text={"format": {"type": "json_object"}}, max_output_tokens=60
    )
    assert text_of(response).lstrip().startswith("{")


async def test_a_schema_that_cannot_be_enforced(caller: Caller) -> None:
    schema = {"type": "array", "uniqueItems": True}
    format = {"type": "json_schema", "name": "set", "schema": schema}
    error = (await caller.refused(input="x", text={"format": format}))["error"]
    assert error["param"] == "text.format.schema"
    assert "uniqueItems" in error["message"]
    tool = {**TOOL, "strict": True, "parameters": {"type": "object", "not": {}}}
    error = (await caller.refused(input="x", tools=[tool]))["error"]
    assert error["param"] == "tools"
    await caller.turn("and on")

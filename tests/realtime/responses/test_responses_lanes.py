"""Stream queues, cancellation and steering over the WebSocket of the Responses API."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from starlette.applications import Starlette

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from continuo.realtime.transport.responses_connection import ResponsesConnection
from tests.support.engines import EngineHarness, digest_engine
from tests.support.response_chains import (
    FINAL_EVENT_TYPES,
    JsonEvent,
    ResponsesClient,
    cached_tokens,
    connect_responses_client,
    output_text,
)
from tests.support.sockets import FakeSocket
from tests.support.web_servers import RunningServer, serve_harness

pytestmark = pytest.mark.slow

LIMITS = Limits(
    stream_queues_max=3,
    running_responses_max=2,
    waiting_responses_max=4,
    pending_steers_max=2,
    waiting_response_chars_max=20_000,
)


@pytest.fixture
async def bench(chatty: Path) -> AsyncIterator[EngineHarness]:
    """An engine with slow steps, so that responses can be interrupted."""
    async with digest_engine(
        chatty, pages=512, page_size=4, max_model_len=400, batched_tokens=64, step_s=0.004
    ) as bench:
        yield bench


@pytest.fixture
async def running(bench: EngineHarness) -> AsyncIterator[RunningServer]:
    store = await open_store("sqlite://:memory:")
    settings = GatewaySettings(served_model_name=("demo",), limits=LIMITS)
    async with serve_harness(bench, settings, store) as running:
        yield running
    await store.aclose()
    assert await bench.engine.list_sessions() == [], "nothing is left open in the engine"


@pytest.fixture
async def caller(running: RunningServer) -> AsyncIterator[ResponsesClient]:
    async with connect_responses_client(running) as caller:
        yield caller


async def started(caller: ResponsesClient, **fields: object) -> str:
    """Create a long response and wait for its first text. Returns its id."""
    await caller.send(**{"input": "hello", "ignore_eos": True, "max_output_tokens": 300, **fields})
    events = await caller.wait_for("response.output_text.delta")
    return str(events[0]["response"]["id"])


def sequence(events: list[JsonEvent]) -> list[int]:
    return [event["sequence_number"] for event in events]


# ---------------------------------------------------------------- stream queues


async def test_idle_connection_does_not_keep_its_last_frame(running: RunningServer) -> None:
    socket = FakeSocket()
    app = cast("Starlette", running.server.config.app)
    responses: ResponseService = app.state.responses
    connection = ResponsesConnection(socket, responses, "default", lambda name: name or "demo")
    serving = asyncio.create_task(connection.run())
    frame = json.dumps({"type": "response.cancel"})
    unused = sys.getrefcount(frame)
    socket.frames.put_nowait(frame)
    await socket.wait_for("error")
    async with asyncio.timeout(20):
        while sys.getrefcount(frame) > unused:
            await asyncio.sleep(0)
    socket.frames.put_nowait(None)
    await asyncio.wait_for(serving, 20)


async def test_responses_without_a_stream_id_run_one_after_another(caller: ResponsesClient) -> None:
    for n in range(3):
        await caller.send(input=f"hello {n}", max_output_tokens=3)
    for _ in range(3):
        events = await caller.wait_for(*FINAL_EVENT_TYPES)
        assert sequence(events) == list(range(len(events)))
        assert len({event["response"]["id"] for event in events if "response" in event}) == 1


async def test_response_being_generated_may_be_continued(caller: ResponsesClient) -> None:
    """The second waits in its stream queue until the first, whose id is known, has ended."""
    first = await started(caller, max_output_tokens=20)
    await caller.send(input="on", previous_response_id=first, max_output_tokens=2)
    assert (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]["response"]["id"] == first
    second = (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]["response"]
    assert second["previous_response_id"] == first
    assert cached_tokens(second) > 20


async def test_stream_waits_for_the_response_that_it_continues(caller: ResponsesClient) -> None:
    first = await started(caller, max_output_tokens=30, stream_id="a")
    await caller.send(input="on", previous_response_id=first, max_output_tokens=2, stream_id="b")
    assert (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]["response"]["id"] == first
    second = (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]
    assert (second["stream_id"], second["response"]["previous_response_id"]) == ("b", first)
    assert cached_tokens(second["response"]) >= 30


async def test_streams_run_concurrently_and_events_carry_their_stream_id(
    caller: ResponsesClient,
) -> None:
    await caller.send(input="long", ignore_eos=True, max_output_tokens=200, stream_id="a")
    await caller.wait_for("response.output_text.delta")
    await caller.send(input="short", max_output_tokens=2, stream_id="b")
    events = await caller.wait_for(*FINAL_EVENT_TYPES)
    assert events[-1]["stream_id"] == "b", (
        "the short response waited for the long one of another stream"
    )
    events += await caller.wait_for(*FINAL_EVENT_TYPES)
    for stream in ("a", "b"):
        numbers = sequence([event for event in events if event["stream_id"] == stream])
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_new_streams_continue_one_response_on_forks(
    caller: ResponsesClient, bench: EngineHarness
) -> None:
    first = await caller.create_response("hello", stream_id="a")
    for stream in ("b", "c"):
        await caller.send(
            input="go on", previous_response_id=first["id"], max_output_tokens=2, stream_id=stream
        )
    ended = [(await caller.wait_for(*FINAL_EVENT_TYPES))[-1] for _ in range(2)]
    assert {event["stream_id"] for event in ended} == {"b", "c"}
    one, other = (event["response"] for event in ended)
    assert output_text(one) == output_text(other)
    for response in (one, other):
        assert cached_tokens(response) >= first["usage"]["total_tokens"] // 4 * 4 - 4


async def test_streams_and_waiting_requests_are_limited(caller: ResponsesClient) -> None:
    for stream in ("a", "b", "c"):
        await caller.send(
            input="long", ignore_eos=True, max_output_tokens=300, stream_id=stream, store=False
        )
    await caller.send(input="x", stream_id="d")
    while (event := await caller.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert (event["status"], event["stream_id"]) == (400, "d")
    for _ in range(4):
        await caller.send(input="x", max_output_tokens=1, stream_id="a")
    while (event := await caller.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert event["stream_id"] == "a"


async def test_waiting_requests_are_limited_in_characters(caller: ResponsesClient) -> None:
    await started(caller)
    await caller.send(input="x" * 15_000, max_output_tokens=1)
    await caller.send(input="x" * 10_000, max_output_tokens=1)
    while (event := await caller.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert "limit of 20,000" in event["error"]["message"]
    await caller.send("response.cancel")
    while (event := await caller.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "context_length_exceeded", (
        "the first waiting request was not run"
    )
    assert len((await caller.create_response("hello"))["output"]) == 1, (
        "the waiting requests still count"
    )


# ---------------------------------------------------------------- cancel


async def test_cancelled_response_ends_as_incomplete(caller: ResponsesClient) -> None:
    response = await started(caller)
    await caller.send("response.cancel", response_id=response)
    ended = (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]
    assert ended["type"] == "response.incomplete"
    assert ended["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert 0 < ended["response"]["usage"]["output_tokens"] < 300
    assert output_text(ended["response"]), "the text generated so far was discarded"
    continued = await caller.create_response("on", previous_response_id=response)
    assert cached_tokens(continued) >= ended["response"]["usage"]["total_tokens"] - 1


async def test_cancel_without_an_id_cancels_the_active_response(caller: ResponsesClient) -> None:
    await started(caller)
    await caller.send("response.cancel")
    assert (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]["type"] == "response.incomplete"
    event = await caller.expect_error("response.cancel")
    assert event["error"]["code"] == "response_not_active"


async def test_cancel_of_an_ended_response_is_refused(caller: ResponsesClient) -> None:
    response = await caller.create_response("hello")
    event = await caller.expect_error("response.cancel", response_id=response["id"])
    assert event["error"]["code"] == "response_not_active"
    assert event["error"]["param"] == "response_id"
    await caller.create_response("still good")


async def test_unstored_response_ends_with_its_connection(
    running: RunningServer, bench: EngineHarness
) -> None:
    async with connect_responses_client(running) as caller:
        await started(caller, store=False)
    await bench.wait_until_empty()


# ---------------------------------------------------------------- steer


async def test_steering_ends_a_response_and_creates_a_successor(caller: ResponsesClient) -> None:
    response = await started(caller, instructions="be kind", stream_id="a", metadata={"k": "v"})
    await caller.send("response.steer", previous_response_id=response, input="no, shorter")
    first = await caller.wait_for(*FINAL_EVENT_TYPES)
    [accepted] = [event for event in first if event["type"] == "response.steer.accepted"]
    assert accepted["steer"]["previous_response_id"] == response
    assert accepted["stream_id"] == "a"
    assert sequence(first) == list(range(sequence(first)[0], sequence(first)[-1] + 1))
    ended = first[-1]["response"]
    assert ended["incomplete_details"] == {"reason": "steered"}
    second = await caller.wait_for(*FINAL_EVENT_TYPES)
    created = second[0]["response"]
    assert second[0]["type"] == "response.created"
    assert created["previous_response_id"] == response
    assert (created["instructions"], created["metadata"]) == ("be kind", {"k": "v"})
    assert cached_tokens(second[-1]["response"]) >= ended["usage"]["total_tokens"] - 1


async def test_second_steer_is_accepted_or_its_input_returned(caller: ResponsesClient) -> None:
    """The second may arrive after the first has ended the response; then its input is returned."""
    response = await started(caller)
    steer = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}]}
    await caller.send("response.steer", previous_response_id=response, input="no")
    await caller.send("response.steer", previous_response_id=response, input=[steer])
    events = await caller.wait_for(*FINAL_EVENT_TYPES)
    events += await caller.wait_for(*FINAL_EVENT_TYPES)
    assert events[-1]["response"]["previous_response_id"] == response
    outcomes = [event for event in events if event["type"].startswith("response.steer.")]
    while len(outcomes) < 2:
        outcomes += await caller.wait_for("response.steer.failed")
    assert outcomes[0]["type"] == "response.steer.accepted"
    if outcomes[1]["type"] == "response.steer.failed":
        assert outcomes[1]["error"]["code"] == "response_already_completed"
        assert outcomes[1]["steer"]["input"] == [steer]


async def test_failed_steering_returns_the_input(caller: ResponsesClient) -> None:
    response = await started(caller)
    invalid = [{"role": "assistant", "content": "x"}]
    await caller.send("response.steer", previous_response_id=response, input=invalid)
    failed = (await caller.wait_for("response.steer.failed"))[-1]
    assert failed["error"]["code"] == "invalid_input"
    assert failed["steer"] == {"previous_response_id": response, "input": invalid}
    await caller.send("response.steer", previous_response_id="resp_none", input="x")
    failed = (await caller.wait_for("response.steer.failed"))[-1]
    assert failed["error"]["code"] == "response_not_found"
    await caller.send("response.cancel", response_id=response)
    await caller.wait_for(*FINAL_EVENT_TYPES)
    await caller.send("response.steer", previous_response_id=response, input="x")
    failed = (await caller.wait_for("response.steer.failed"))[-1]
    assert failed["error"]["code"] == "response_already_completed"
    assert failed["sequence_number"] == 0


async def test_steering_fails_if_the_successor_exceeds_the_context(caller: ResponsesClient) -> None:
    response = await started(caller)
    await caller.send("response.steer", previous_response_id=response, input="x" * 500)
    events = await caller.wait_for("response.steer.failed")
    accepted = next(event for event in events if event["type"] == "response.steer.accepted")
    assert events[-1]["error"]["code"] == "successor_creation_failed"
    assert events[-1]["steer"]["id"] == accepted["steer"]["id"]
    await caller.create_response("still good")


async def test_pending_steers_are_limited(bench: EngineHarness) -> None:
    settings = GatewaySettings(served_model_name=("demo",), limits=Limits(pending_steers_max=0))
    store = await open_store("sqlite://:memory:")
    async with (
        serve_harness(bench, settings, store) as running,
        connect_responses_client(running) as caller,
    ):
        response = await started(caller, store=False)
        await caller.send("response.steer", previous_response_id=response, input="x")
        failed = await caller.wait_for("response.steer.failed")
        assert failed[-1]["error"]["code"] == "too_many_pending_steers"
        await caller.send("response.cancel")
        await caller.wait_for(*FINAL_EVENT_TYPES)
    await store.aclose()


async def test_pending_steers_are_limited_in_bytes(caller: ResponsesClient) -> None:
    response = await started(caller, store=False)
    await caller.send("response.steer", previous_response_id=response, input="x" * 25_000)
    failed = (await caller.wait_for("response.steer.failed"))[-1]
    assert failed["error"]["code"] == "too_many_pending_steers"
    assert "the limit is 20,000 bytes" in failed["error"]["message"]
    await caller.send("response.cancel")
    assert (await caller.wait_for(*FINAL_EVENT_TYPES))[-1]["type"] == "response.incomplete"


# ---------------------------------------------------------------- a slow reader


async def test_connection_of_a_slow_reader_is_closed(bench: EngineHarness) -> None:
    template = bench.engine.text.template
    assert template is not None
    limits = Limits(send_timeout_s=0.1)
    responses = ResponseService(
        bench.engine, template, GenerationSettings(), limits, lambda tenant: tenant
    )
    socket = FakeSocket()
    running = asyncio.create_task(
        ResponsesConnection(socket, responses, "", lambda name: "demo").run()
    )
    socket.push_event(type="response.create", input="hello", store=False, max_output_tokens=300)
    await socket.wait_for("response.output_text.delta")
    socket.peer_reads.clear()
    await asyncio.wait_for(running, 20)
    assert socket.closed is not None
    assert socket.closed[0] == 1013
    await responses.close()
    assert await bench.engine.list_sessions() == []

"""Stream queues, cancellation and steering over the WebSocket of the Responses API."""

import asyncio
import json
import sys
from typing import Any

import pytest

from continuo.engine import SessionGroup
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.transport.responses_connection import ResponsesConnection
from tests.support.clients import (
    FINAL_EVENT_TYPES,
    JsonEvent,
    ResponsesClient,
    cached_tokens,
    connect_responses,
    output_text,
)
from tests.support.engines import EngineHarness
from tests.support.sockets import FakeSocket
from tests.support.web_servers import TENANTS, RunningServer, serve_harness

pytestmark = pytest.mark.slow

LIMITS = Limits(
    stream_queues_max=3,
    running_responses_max=2,
    waiting_responses_max=4,
    pending_steers_max=2,
    waiting_response_chars_max=20_000,
)


@pytest.fixture
def engine_options() -> dict[str, Any]:
    """Slow steps, so that responses can be interrupted."""
    return {"pages": 512, "step_s": 0.004}


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    return GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=LIMITS)


async def started(client: ResponsesClient, **fields: object) -> str:
    """Create a long response and wait for its first text. Returns its id."""
    await client.send(**{"input": "hello", "ignore_eos": True, "max_output_tokens": 300, **fields})
    events = await client.receive_until("response.output_text.delta")
    return str(events[0]["response"]["id"])


def sequence(events: list[JsonEvent]) -> list[int]:
    return [event["sequence_number"] for event in events]


# ---------------------------------------------------------------- stream queues


async def test_idle_connection_does_not_keep_its_last_frame(server: RunningServer) -> None:
    socket = FakeSocket()
    responses: ResponseService = server.app.state.responses
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


async def test_responses_without_a_stream_id_run_one_after_another(client: ResponsesClient) -> None:
    for n in range(3):
        await client.send(input=f"hello {n}", max_output_tokens=3)
    for _ in range(3):
        events = await client.receive_until(*FINAL_EVENT_TYPES)
        assert sequence(events) == list(range(len(events)))
        assert len({event["response"]["id"] for event in events if "response" in event}) == 1


async def test_response_being_generated_may_be_continued(client: ResponsesClient) -> None:
    """The second waits in its stream queue until the first, whose id is known, has ended."""
    first = await started(client, max_output_tokens=20)
    await client.send(input="on", previous_response_id=first, max_output_tokens=2)
    assert (await client.wait_for(*FINAL_EVENT_TYPES))["response"]["id"] == first
    second = (await client.wait_for(*FINAL_EVENT_TYPES))["response"]
    assert second["previous_response_id"] == first
    assert cached_tokens(second) > 20


async def test_stream_waits_for_the_response_that_it_continues(client: ResponsesClient) -> None:
    first = await started(client, max_output_tokens=30, stream_id="a")
    await client.send(input="on", previous_response_id=first, max_output_tokens=2, stream_id="b")
    assert (await client.wait_for(*FINAL_EVENT_TYPES))["response"]["id"] == first
    second = await client.wait_for(*FINAL_EVENT_TYPES)
    assert (second["stream_id"], second["response"]["previous_response_id"]) == ("b", first)
    assert cached_tokens(second["response"]) >= 30


async def test_streams_run_concurrently_and_events_carry_their_stream_id(
    client: ResponsesClient,
) -> None:
    await client.send(input="long", ignore_eos=True, max_output_tokens=200, stream_id="a")
    await client.wait_for("response.output_text.delta")
    await client.send(input="short", max_output_tokens=2, stream_id="b")
    events = await client.receive_until(*FINAL_EVENT_TYPES)
    assert events[-1]["stream_id"] == "b", (
        "the short response waited for the long one of another stream"
    )
    events += await client.receive_until(*FINAL_EVENT_TYPES)
    for stream in ("a", "b"):
        numbers = sequence([event for event in events if event["stream_id"] == stream])
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_new_streams_continue_one_response_on_forks(
    client: ResponsesClient, harness: EngineHarness
) -> None:
    first = await client.create_response("hello", stream_id="a")
    for stream in ("b", "c"):
        await client.send(
            input="go on", previous_response_id=first["id"], max_output_tokens=2, stream_id=stream
        )
    ended = [await client.wait_for(*FINAL_EVENT_TYPES) for _ in range(2)]
    assert {event["stream_id"] for event in ended} == {"b", "c"}
    one, other = (event["response"] for event in ended)
    assert output_text(one) == output_text(other)
    for response in (one, other):
        assert cached_tokens(response) >= first["usage"]["total_tokens"] // 4 * 4 - 4


async def test_streams_and_waiting_requests_are_limited(client: ResponsesClient) -> None:
    for stream in ("a", "b", "c"):
        await client.send(
            input="long", ignore_eos=True, max_output_tokens=300, stream_id=stream, store=False
        )
    await client.send(input="x", stream_id="d")
    while (event := await client.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert (event["status"], event["stream_id"]) == (400, "d")
    for _ in range(4):
        await client.send(input="x", max_output_tokens=1, stream_id="a")
    while (event := await client.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert event["stream_id"] == "a"


async def test_waiting_requests_are_limited_in_characters(client: ResponsesClient) -> None:
    await started(client)
    await client.send(input="x" * 15_000, max_output_tokens=1)
    await client.send(input="x" * 10_000, max_output_tokens=1)
    while (event := await client.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert "limit of 20,000" in event["error"]["message"]
    await client.send("response.cancel")
    while (event := await client.receive())["type"] != "error":
        pass
    assert event["error"]["code"] == "context_length_exceeded", (
        "the first waiting request was not run"
    )
    assert len((await client.create_response("hello"))["output"]) == 1, (
        "the waiting requests still count"
    )


# ---------------------------------------------------------------- cancel


async def test_cancelled_response_ends_as_incomplete(client: ResponsesClient) -> None:
    response = await started(client)
    await client.send("response.cancel", response_id=response)
    ended = await client.wait_for(*FINAL_EVENT_TYPES)
    assert ended["type"] == "response.incomplete"
    assert ended["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert 0 < ended["response"]["usage"]["output_tokens"] < 300
    assert output_text(ended["response"]), "the text generated so far was discarded"
    continued = await client.create_response("on", previous_response_id=response)
    assert cached_tokens(continued) >= ended["response"]["usage"]["total_tokens"] - 1


async def test_cancel_without_an_id_cancels_the_active_response(client: ResponsesClient) -> None:
    await started(client)
    await client.send("response.cancel")
    assert (await client.wait_for(*FINAL_EVENT_TYPES))["type"] == "response.incomplete"
    event = await client.expect_error("response.cancel")
    assert event["error"]["code"] == "response_not_active"


async def test_cancel_of_an_ended_response_is_refused(client: ResponsesClient) -> None:
    response = await client.create_response("hello")
    event = await client.expect_error("response.cancel", response_id=response["id"])
    assert event["error"]["code"] == "response_not_active"
    assert event["error"]["param"] == "response_id"
    await client.create_response("still good")


async def test_unstored_response_ends_with_its_connection(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with connect_responses(server) as client:
        await started(client, store=False)
    await harness.wait_until_empty()


# ---------------------------------------------------------------- steer


async def test_steering_ends_a_response_and_creates_a_successor(client: ResponsesClient) -> None:
    response = await started(client, instructions="be kind", stream_id="a", metadata={"k": "v"})
    await client.send("response.steer", previous_response_id=response, input="no, shorter")
    first = await client.receive_until(*FINAL_EVENT_TYPES)
    [accepted] = [event for event in first if event["type"] == "response.steer.accepted"]
    assert accepted["steer"]["previous_response_id"] == response
    assert accepted["stream_id"] == "a"
    assert sequence(first) == list(range(sequence(first)[0], sequence(first)[-1] + 1))
    ended = first[-1]["response"]
    assert ended["incomplete_details"] == {"reason": "steered"}
    second = await client.receive_until(*FINAL_EVENT_TYPES)
    created = second[0]["response"]
    assert second[0]["type"] == "response.created"
    assert created["previous_response_id"] == response
    assert (created["instructions"], created["metadata"]) == ("be kind", {"k": "v"})
    assert cached_tokens(second[-1]["response"]) >= ended["usage"]["total_tokens"] - 1


async def test_second_steer_is_accepted_or_its_input_returned(client: ResponsesClient) -> None:
    """The second may arrive after the first has ended the response; then its input is returned."""
    response = await started(client)
    steer = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}]}
    await client.send("response.steer", previous_response_id=response, input="no")
    await client.send("response.steer", previous_response_id=response, input=[steer])
    events = await client.receive_until(*FINAL_EVENT_TYPES)
    events += await client.receive_until(*FINAL_EVENT_TYPES)
    assert events[-1]["response"]["previous_response_id"] == response
    outcomes = [event for event in events if event["type"].startswith("response.steer.")]
    while len(outcomes) < 2:
        outcomes += await client.receive_until("response.steer.failed")
    assert outcomes[0]["type"] == "response.steer.accepted"
    if outcomes[1]["type"] == "response.steer.failed":
        assert outcomes[1]["error"]["code"] == "response_already_completed"
        assert outcomes[1]["steer"]["input"] == [steer]


async def test_failed_steering_returns_the_input(client: ResponsesClient) -> None:
    response = await started(client)
    invalid = [{"role": "assistant", "content": "x"}]
    await client.send("response.steer", previous_response_id=response, input=invalid)
    failed = await client.wait_for("response.steer.failed")
    assert failed["error"]["code"] == "invalid_input"
    assert failed["steer"] == {"previous_response_id": response, "input": invalid}
    await client.send("response.steer", previous_response_id="resp_none", input="x")
    failed = await client.wait_for("response.steer.failed")
    assert failed["error"]["code"] == "response_not_found"
    await client.send("response.cancel", response_id=response)
    await client.wait_for(*FINAL_EVENT_TYPES)
    await client.send("response.steer", previous_response_id=response, input="x")
    failed = await client.wait_for("response.steer.failed")
    assert failed["error"]["code"] == "response_already_completed"
    assert failed["sequence_number"] == 0


async def test_steering_fails_if_the_successor_exceeds_the_context(client: ResponsesClient) -> None:
    response = await started(client)
    await client.send("response.steer", previous_response_id=response, input="x" * 500)
    events = await client.receive_until("response.steer.failed")
    accepted = next(event for event in events if event["type"] == "response.steer.accepted")
    assert events[-1]["error"]["code"] == "successor_creation_failed"
    assert events[-1]["steer"]["id"] == accepted["steer"]["id"]
    await client.create_response("still good")


async def test_pending_steers_are_limited(harness: EngineHarness) -> None:
    settings = GatewaySettings(served_model_name=("demo",), limits=Limits(pending_steers_max=0))
    async with (
        serve_harness(harness, settings) as server,
        connect_responses(server) as client,
    ):
        response = await started(client, store=False)
        await client.send("response.steer", previous_response_id=response, input="x")
        failed = await client.wait_for("response.steer.failed")
        assert failed["error"]["code"] == "too_many_pending_steers"
        await client.send("response.cancel")
        await client.wait_for(*FINAL_EVENT_TYPES)


async def test_pending_steers_are_limited_in_bytes(client: ResponsesClient) -> None:
    response = await started(client, store=False)
    await client.send("response.steer", previous_response_id=response, input="x" * 25_000)
    failed = await client.wait_for("response.steer.failed")
    assert failed["error"]["code"] == "too_many_pending_steers"
    assert "the limit is 20,000 bytes" in failed["error"]["message"]
    await client.send("response.cancel")
    assert (await client.wait_for(*FINAL_EVENT_TYPES))["type"] == "response.incomplete"


# ---------------------------------------------------------------- a slow reader


async def test_connection_of_a_slow_reader_is_closed(harness: EngineHarness) -> None:
    template = harness.engine.text.template
    assert template is not None
    limits = Limits(send_timeout_s=0.1)
    responses = ResponseService(
        harness.engine, template, GenerationSettings(), limits, SessionGroup
    )
    socket = FakeSocket()
    serving = asyncio.create_task(
        ResponsesConnection(socket, responses, "", lambda name: "demo").run()
    )
    socket.push_event(type="response.create", input="hello", store=False, max_output_tokens=300)
    await socket.wait_for("response.output_text.delta")
    socket.peer_reads.clear()
    await asyncio.wait_for(serving, 20)
    assert socket.closed is not None
    assert socket.closed[0] == 1013
    await responses.close()
    assert await harness.engine.fleet.list_sessions() == []

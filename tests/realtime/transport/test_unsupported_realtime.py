"""Requests of Realtime clients for what the server does not have: refused by name, once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets import Subprotocol

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import family_folder, family_text
from tests.support.clients import (
    RealtimeClient,
    RequestRefused,
    connect_realtime,
    open_realtime_session,
)
from tests.support.engines import running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import ACME, TENANTS, RunningServer, serve_harness

APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def test_session_that_asks_for_audio_is_served_as_text(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        session = {"type": "realtime", "output_modalities": ["audio"]}
        await client.send("session.update", session=session)
        updated = await client.expect("session.updated")
        assert updated["session"]["output_modalities"] == ["text"]
        await client.add_message("hello")
        assert await client.complete_response(max_output_tokens=4)


async def test_first_audio_is_refused_and_later_audio_dropped(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.send(**APPEND, event_id="first")
        error = (await client.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("audio_not_supported", "first")
        for _ in range(3):
            await client.send(**APPEND)
        await client.send("input_audio_buffer.clear")
        await client.expect("input_audio_buffer.cleared")


async def test_audio_is_refused_once_though_the_client_resumes(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.send(**APPEND)
        assert (await client.expect("error"))["error"]["code"] == "audio_not_supported"
        await client.socket.close()
        await client.resume(server.url)
        await client.expect("session.updated")
        await client.send(**APPEND)
        await client.send("input_audio_buffer.clear")
        await client.expect("input_audio_buffer.cleared")


async def test_truncation_of_text_at_a_time_names_text_end(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello")
        await client.start_response(max_output_tokens=8, ignore_eos=True)
        item = (await client.wait_for("response.done"))["response"]["output"][0]
        truncation: dict[str, Any] = {"item_id": item["id"], "content_index": 0, "audio_end_ms": 9}
        await client.send("conversation.item.truncate", **truncation)
        await client.expect("rate_limits.updated")
        error = (await client.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", "text_end")
        await client.send("conversation.item.truncate", **truncation, text_end=2)
        assert (await client.expect("conversation.item.truncated"))["text_end"] == 2


@pytest.mark.parametrize(
    ("query", "param"), [("intent=transcription", "intent"), ("call_id=rtc_1", "call_id")]
)
async def test_connection_for_audio_is_refused_by_name(
    server: RunningServer, query: str, param: str
) -> None:
    async with connect_realtime(f"{server.url}?{query}") as client:
        assert (await client.expect("error"))["error"]["param"] == param
        assert await client.wait_close_code() == 1008


@pytest.mark.parametrize(
    ("headers", "subprotocols"),
    [
        ({"OpenAI-Beta": "realtime=v1"}, None),
        ({}, [Subprotocol("realtime"), Subprotocol("openai-beta.realtime-v1")]),
    ],
)
async def test_beta_client_gets_the_names_of_the_beta(
    server: RunningServer, headers: dict[str, str], subprotocols: list[Subprotocol] | None
) -> None:
    options: dict[str, Any] = {"headers": {**ACME, **headers}, "subprotocols": subprotocols}
    async with connect_realtime(server.url, **options) as client:
        await client.expect("session.created")
        session = {"modalities": ["text"], "max_response_output_tokens": 4, "voice": "alloy"}
        await client.send("session.update", session=session)
        updated = (await client.expect("session.updated"))["session"]
        assert (updated["modalities"], updated["max_response_output_tokens"]) == (["text"], 4)
        assert updated["turn_detection"] is None
        assert not {"type", "audio", "output_modalities", "max_output_tokens"} & updated.keys()
        await client.send_message("hello")
        await client.expect("conversation.item.created")
        await client.send("response.create")
        await check_beta_response(client)


async def test_beta_client_without_a_session_update_gets_the_names_of_the_beta(
    server: RunningServer,
) -> None:
    headers = {**ACME, "OpenAI-Beta": "realtime=v1"}
    async with open_realtime_session(server.url, headers) as client:
        response = {"modalities": ["text"], "max_output_tokens": 4}
        await client.send("response.create", response=response)
        await check_beta_response(client)


async def check_beta_response(client: RealtimeClient) -> None:
    """Receive a response, and assert that its text is in the events of the beta."""
    events = await client.receive_until("response.done")
    types = {event["type"] for event in events}
    assert types >= {"response.text.delta", "response.text.done", "conversation.item.created"}
    ga_only = ("response.output_text.", "conversation.item.added", "conversation.item.done")
    assert not [type for type in types if type.startswith(ga_only)]
    text = "".join(event["delta"] for event in events if event["type"] == "response.text.delta")
    assert text
    response = events[-1]["response"]
    assert response["modalities"] == ["text"]
    assert response["output"][0]["content"] == [{"type": "text", "text": text}]


def slow_caller() -> ScriptedRunner:
    """Return a device that calls a tool in its first turn, and then takes seconds to end it, until
    its `step_s` is set to 0."""
    text = family_text("qwen3_0_6b")
    geometry = Geometry(800, 4, 3200, text.vocab_size, 256, 0)
    device = ScriptedRunner(geometry, text, [CALL + " \n" * 50, "Sunny."])
    device.step_s = 0.03
    return device


@contextlib.asynccontextmanager
async def calling_session(
    device: ScriptedRunner, headers: dict[str, str], **session: Any
) -> AsyncIterator[RealtimeClient]:
    """Open a session whose response has called a tool and not ended, and whose client has sent the
    result of the call, and `response.create`."""
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    async with (
        running_engine(family_folder("qwen3_0_6b"), lambda: device) as harness,
        serve_harness(harness, settings) as server,
        open_realtime_session(server.url, headers) as client,
    ):
        await client.send("session.update", session={**session, "tools": [tool]})
        await client.send("response.create")
        called = await client.wait_for("response.output_item.done")
        result = {"type": "function_call_output", "call_id": called["item"]["call_id"]}
        await client.send("conversation.item.create", item={**result, "output": "sunny"})
        await client.send("response.create")
        yield client


@pytest.mark.slow
async def test_beta_client_may_continue_before_the_response_that_called_has_ended() -> None:
    device = slow_caller()
    async with calling_session(device, {**ACME, "OpenAI-Beta": "realtime=v1"}) as client:
        await client.expect("conversation.item.created")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(), 0.2)
        device.step_s = 0.0
        await client.expect("response.done", "rate_limits.updated", "response.created")
        response = (await client.wait_for("response.done"))["response"]
        assert response["output"][0]["content"] == [{"type": "text", "text": "Sunny."}]


@pytest.mark.slow
async def test_ga_client_waits_for_the_end_of_the_response_that_called() -> None:
    device = slow_caller()
    async with calling_session(device, ACME, type="realtime") as client:
        with pytest.raises(RequestRefused, match="conversation_already_has_active_response"):
            await client.wait_for("response.done")
        device.step_s = 0.0
        await client.wait_for("response.done")


async def test_ga_client_behind_a_proxy_that_announces_the_beta_is_served(
    server: RunningServer,
) -> None:
    headers = {**ACME, "OpenAI-Beta": "realtime=v1"}
    async with connect_realtime(server.url, headers=headers) as client:
        await client.expect("session.created")
        await client.send("session.update", session={"type": "realtime", "instructions": "x"})
        await client.expect("session.updated")


async def test_missing_session_type_does_not_close_other_connections(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.send("session.update", session={"instructions": "x"})
        assert (await client.expect("error"))["error"]["param"] == "session.type"
        await client.send("session.update", session={"type": "realtime"})
        await client.expect("session.updated")

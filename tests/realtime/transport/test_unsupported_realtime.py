"""Requests of Realtime clients for what the server does not have: refused by name, once."""

from typing import Any

import pytest
from websockets import Subprotocol

from tests.support.clients import RealtimeClient, connect_realtime, open_realtime_session
from tests.support.web_servers import ACME, RunningServer

APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}


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

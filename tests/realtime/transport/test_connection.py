"""Tests of `Connection`: a fake socket and the real engine on the null device."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.commands import ConversationCommand
from continuo.realtime.session.session import Session
from continuo.realtime.session.state import SessionState
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient
from tests.support.sessions import SLOW_STEP_S, create_registry
from tests.support.waiting import wait_until


@contextlib.asynccontextmanager
async def connect(
    harness: EngineHarness, limits: Limits | None = None
) -> AsyncIterator[InProcessClient]:
    registry = await create_registry(harness, limits)
    client = InProcessClient(registry, limits)
    client.connect()
    yield client
    if not client.is_closed:
        await client.disconnect()
    await client.wait_closed()
    assert len(registry) == 0
    await registry.aclose()
    assert await harness.engine.fleet.list_sessions() == [], "the engine still holds a session"


async def test_idle_connection_does_not_keep_its_last_frame(harness: EngineHarness) -> None:
    async with connect(harness) as client:
        frame = json.dumps({"type": "input_audio_buffer.clear"})
        unused = sys.getrefcount(frame)
        client.socket.frames.put_nowait(frame)
        await client.socket.wait_for("input_audio_buffer.cleared")
        async with asyncio.timeout(20):
            while sys.getrefcount(frame) > unused:
                await asyncio.sleep(0)


async def test_first_frame_is_session_created(harness: EngineHarness) -> None:
    async with connect(harness) as client:
        created = await client.socket.wait_for("session.created")
        assert client.socket.sent[0] is created
        session = created["session"]
        assert session["id"].startswith("sess_")
        assert (session["type"], session["model"]) == ("realtime", "demo")
        assert session["temperature"] == 0


async def test_response_create_accepts_only_the_sessions_own_conversation(
    harness: EngineHarness,
) -> None:
    async with connect(harness) as client:
        client.send_message("hello")
        client.socket.push_event(type="response.create", response={"conversation": "conv_unknown"})
        error = (await client.socket.wait_for("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "response.conversation")
        for conversation in ("auto", None):
            short = {"conversation": conversation, "max_output_tokens": 2}
            client.socket.push_event(type="response.create", response=short)
            done = await client.socket.wait_for("response.done")
        own = done["response"]["conversation_id"]
        assert f"'{own}'" in error["message"]
        short = {"conversation": own, "max_output_tokens": 2}
        client.socket.push_event(type="response.create", response=short)
        done = await client.socket.wait_for("response.done")
        assert done["response"]["conversation_id"] == own


async def test_function_call_without_a_call_id_may_be_sent_again(harness: EngineHarness) -> None:
    async with connect(harness) as client:
        item = {"type": "function_call", "id": "fc_a", "name": "look", "arguments": "{}"}
        for _ in range(2):
            client.socket.push_event(type="conversation.item.create", item=item)
        first = await client.socket.wait_for("conversation.item.done")
        second = await client.socket.wait_for("conversation.item.done")
        assert first["item"] == second["item"]
        assert first["item"]["call_id"].startswith("call_")
        client.socket.push_event(
            type="conversation.item.create", item={**item, "call_id": "call_other"}
        )
        error = (await client.socket.wait_for("error"))["error"]
        assert error["code"] == "item_create_duplicate_item_id"


async def test_disconnect_parks_the_session_and_completes_its_response(
    harness: EngineHarness,
) -> None:
    async with connect(harness) as client:
        client.send_message("hello")
        client.socket.push_event(type="response.create")
        await client.socket.wait_for("response.output_text.delta")
        await client.disconnect()
        assert len(client.registry) == 0, "the session still counts as connected"
        name = client.socket.sent[0]["session"]["id"]
        session = client.registry.find(name)
        assert session is not None
        while session.state is not SessionState.IDLE:
            await asyncio.sleep(0)
        assert sum(1 for _ in session.conversation.items()) == 2


@pytest.mark.parametrize("since", ["response.created", "response.output_text.delta"])
async def test_session_close_cancels_the_running_turn(harness: EngineHarness, since: str) -> None:
    async with connect(harness) as client:
        client.send_message("hello")
        client.socket.push_event(type="response.create")
        await client.socket.wait_for(since)
        client.socket.push_event(type="session.close")
        await client.socket.wait_for("session.closed")
        await client.wait_closed()
        assert (await harness.engine.fleet.stats()).active_turns == 0


async def test_session_ended_during_its_opening_leaves_no_engine_session(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_open, opened = harness.engine.open, asyncio.Event()

    async def open_without_reply(*arguments: Any, **options: Any) -> str:
        await engine_open(*arguments, **options)
        opened.set()
        return await asyncio.Future()

    async with connect(harness) as client:
        monkeypatch.setattr(harness.engine, "open", open_without_reply)
        client.send_message("hello")
        await asyncio.wait_for(opened.wait(), 20)
        session = client.registry.find(client.socket.sent[0]["session"]["id"])
        assert session is not None
        await client.registry.terminate(
            session, CloseCode.CLOSED_BY_OPERATOR, "the session was deleted"
        )
        await client.wait_closed()


async def test_binary_frame_closes_the_connection(harness: EngineHarness) -> None:
    async with connect(harness) as client:
        client.socket.frames.put_nowait(b"{}")
        await client.wait_closed()
        assert client.socket.closed is not None
        assert client.socket.closed[0] is CloseCode.UNSUPPORTED_DATA


async def test_only_consecutive_bad_frames_close_the_connection(harness: EngineHarness) -> None:
    async with connect(harness, Limits(bad_frames_max=3)) as client:
        for _ in range(3):
            client.socket.frames.put_nowait("x")
            client.socket.frames.put_nowait("y")
            client.socket.push_event(type="input_audio_buffer.clear")
        await client.socket.wait_for("input_audio_buffer.cleared", 3)
        for _ in range(3):
            client.socket.frames.put_nowait("x")
        await client.wait_closed()
        assert client.socket.closed is not None
        assert client.socket.closed[0] is CloseCode.INVALID_DATA
        errors = [event for event in client.socket.sent if event["type"] == "error"]
        assert len(errors) == 9, "the last bad frame got no error event"


@pytest.mark.parametrize("extra", [0, 1])
async def test_frame_limit_is_in_bytes(harness: EngineHarness, extra: int) -> None:
    async with connect(harness, Limits(frame_bytes_max=200)) as client:
        frame = '{"type": "input_audio_buffer.clear", "event_id": "e", "x": "'
        frame += "é" * ((198 - len(frame)) // 2)
        frame += "x" * (198 + extra - len(frame.encode())) + '"}'
        assert len(frame.encode()) == 200 + extra
        client.socket.frames.put_nowait(frame)
        if extra:
            error = (await client.socket.wait_for("error"))["error"]
            assert (error["code"], error["event_id"]) == ("frame_too_large", "e")
            assert "201 bytes" in error["message"]
            assert "200 bytes" in error["message"]
        else:
            await client.socket.wait_for("input_audio_buffer.cleared")


async def test_connection_over_the_session_limit_is_refused(harness: EngineHarness) -> None:
    async with connect(harness, Limits(connected_sessions_max=0)) as client:
        await client.wait_closed()
        assert [event["type"] for event in client.socket.sent] == ["error"]
        assert client.socket.sent[0]["error"]["code"] == "rate_limit_exceeded"
        assert client.socket.closed is not None
        assert client.socket.closed[0] is CloseCode.TRY_AGAIN_LATER


async def test_slow_reader_is_disconnected_and_leaves_nothing_behind(
    harness: EngineHarness,
) -> None:
    limits = Limits(outbox_bytes_max=2000, outbox_over_limit_s_max=0.05)
    async with connect(harness, limits) as client:
        await client.socket.wait_for("session.created")
        client.socket.peer_reads.clear()
        for _ in range(20):
            client.send_message("hello")
        await client.wait_closed()
        assert client.socket.closed is not None
        assert client.socket.closed[0] is CloseCode.TRY_AGAIN_LATER
        assert not client.socket.frames.empty(), "the connection read all frames"


PATIENT = Limits(outbox_bytes_max=200, outbox_over_limit_s_max=1e6, send_timeout_s=1e6)


async def fill_outbox(client: InProcessClient, harness: EngineHarness) -> Session:
    """Let a response of 60 tokens run, which fills the outbox, because the client stops reading.
    Returns the session when the response is paused."""
    created = await client.socket.wait_for("session.created")
    session = client.registry.find(created["session"]["id"])
    assert session is not None
    client.send_message("hello")
    client.start_response(60)
    await client.socket.wait_for("response.created")
    client.socket.peer_reads.clear()
    async with asyncio.timeout(20):
        while (await harness.engine.fleet.stats()).active_turns:
            await asyncio.sleep(0)
    assert session.state is SessionState.RESPONDING
    return session


async def test_response_is_cancelled_over_a_line_that_is_full(harness: EngineHarness) -> None:
    harness.runner.step_s = 5 * SLOW_STEP_S
    async with connect(harness, PATIENT) as client:
        session = await fill_outbox(client, harness)
        client.socket.push_event(type="response.cancel")
        await wait_until(lambda: session.state is SessionState.IDLE)
        items = len(list(session.conversation.items()))
        client.send_message("waits", "item_new")
        await wait_until(client.socket.frames.empty)
        assert len(list(session.conversation.items())) == items, "its answer would be output"
        client.socket.peer_reads.set()
        done = await client.socket.wait_for("response.done")
        assert done["response"]["status"] == "cancelled"
        await wait_until(lambda: len(list(session.conversation.items())) == items + 1)


async def test_responses_are_paused_while_the_outbox_is_full(harness: EngineHarness) -> None:
    harness.runner.step_s = 5 * SLOW_STEP_S
    async with connect(harness, PATIENT) as client:
        await fill_outbox(client, harness)
        harness.runner.step_s = 0
        client.socket.peer_reads.set()
        done = await client.socket.wait_for("response.done")
        assert done["response"]["usage"]["output_tokens"] == 60


async def test_client_that_leaves_while_the_outbox_is_full_continues_later(
    harness: EngineHarness,
) -> None:
    harness.runner.step_s = 5 * SLOW_STEP_S
    async with connect(harness, PATIENT) as client:
        await fill_outbox(client, harness)
        client.receive()
        await client.disconnect()
        harness.runner.step_s = 0
        client.resume()
        done = await client.socket.wait_for("response.done")
        assert done["response"]["usage"]["output_tokens"] == 60
        client.socket.push_event(type="session.close")
        await client.wait_closed()


async def test_internal_error_is_sent_and_the_connection_stays_open(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(harness) as client:
        created = await client.socket.wait_for("session.created")
        session = client.registry.find(created["session"]["id"])
        assert session is not None

        async def broken(command: ConversationCommand, once: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(session, "execute", broken)
        client.socket.push_event(type="response.create", event_id="e1")
        error = (await client.socket.wait_for("error"))["error"]
        assert (error["type"], error["event_id"]) == ("server_error", "e1")
        monkeypatch.undo()
        client.send_message("hello")
        await client.socket.wait_for("conversation.item.done")
    assert "ZeroDivisionError" in caplog.text

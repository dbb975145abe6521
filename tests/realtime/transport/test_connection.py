"""A connection between a socket without a network and the real engine on a device of digests."""

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
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.state import SessionState
from continuo.realtime.transport import Connection
from tests.support.engines import Bench
from tests.support.sessions import registry_of
from tests.support.sockets import FakeSocket


class Wire:
    def __init__(self, socket: FakeSocket, registry: Registry, running: asyncio.Task[None]):
        self.socket = socket
        self.registry = registry
        self.running = running

    async def hang_up(self) -> None:
        self.socket.frames.put_nowait(None)
        await asyncio.wait_for(self.running, 20)

    def say(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.socket.put(type="conversation.item.create", item=item)


@contextlib.asynccontextmanager
async def connect(bench: Bench, limits: Limits | None = None) -> AsyncIterator[Wire]:
    limits = limits or Limits()
    registry = await registry_of(bench, limits)
    socket = FakeSocket()
    running = asyncio.create_task(Connection(socket, registry, limits, "demo").run())
    yield Wire(socket, registry, running)
    if not running.done():
        socket.frames.put_nowait(None)
    await asyncio.wait_for(running, 20)
    assert len(registry) == 0
    await registry.aclose()
    assert await bench.engine.list_sessions() == [], "nothing is left behind"


async def test_idle_connection_does_not_keep_its_last_frame(bench: Bench) -> None:
    async with connect(bench) as wire:
        frame = json.dumps({"type": "input_audio_buffer.clear"})
        unused = sys.getrefcount(frame)
        wire.socket.frames.put_nowait(frame)
        await wire.socket.until("input_audio_buffer.cleared")
        async with asyncio.timeout(20):
            while sys.getrefcount(frame) > unused:
                await asyncio.sleep(0)


async def test_the_first_frame_is_the_session(bench: Bench) -> None:
    async with connect(bench) as wire:
        created = await wire.socket.until("session.created")
        assert wire.socket.sent[0] is created
        session = created["session"]
        assert session["id"].startswith("sess_")
        assert (session["type"], session["model"]) == ("realtime", "demo")
        assert session["temperature"] == 0


async def test_a_response_may_name_the_sessions_own_conversation_and_no_other(
    bench: Bench,
) -> None:
    async with connect(bench) as wire:
        wire.say("hello")
        wire.socket.put(type="response.create", response={"conversation": "conv_nobody"})
        error = (await wire.socket.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "response.conversation")
        for wish in ("auto", None):
            short = {"conversation": wish, "max_output_tokens": 2}
            wire.socket.put(type="response.create", response=short)
            done = await wire.socket.until("response.done")
        own = done["response"]["conversation_id"]
        assert f"'{own}'" in error["message"]
        short = {"conversation": own, "max_output_tokens": 2}
        wire.socket.put(type="response.create", response=short)
        done = await wire.socket.until("response.done")
        assert done["response"]["conversation_id"] == own


async def test_a_call_without_a_call_id_may_be_sent_again(bench: Bench) -> None:
    async with connect(bench) as wire:
        item = {"type": "function_call", "id": "fc_a", "name": "look", "arguments": "{}"}
        for _ in range(2):
            wire.socket.put(type="conversation.item.create", item=item)
        first = await wire.socket.until("conversation.item.done")
        again = await wire.socket.until("conversation.item.done")
        assert first["item"] == again["item"]
        assert first["item"]["call_id"].startswith("call_")
        wire.socket.put(type="conversation.item.create", item={**item, "call_id": "call_other"})
        error = (await wire.socket.until("error"))["error"]
        assert error["code"] == "item_create_duplicate_item_id"


async def test_a_drop_leaves_the_session_waiting(bench: Bench) -> None:
    async with connect(bench) as wire:
        wire.say("hello")
        wire.socket.put(type="response.create")
        await wire.socket.until("response.output_text.delta")
        await wire.hang_up()
        assert len(wire.registry) == 0, "nobody is there"
        name = wire.socket.sent[0]["session"]["id"]
        session = wire.registry.find(name)
        assert session is not None
        while session.state is not SessionState.IDLE:
            await asyncio.sleep(0)
        assert sum(1 for _ in session.conversation.items()) == 2


@pytest.mark.parametrize("since", ["response.created", "response.output_text.delta"])
async def test_the_end_of_a_session_stops_the_turn(bench: Bench, since: str) -> None:
    async with connect(bench) as wire:
        wire.say("hello")
        wire.socket.put(type="response.create")
        await wire.socket.until(since)
        wire.socket.put(type="session.close")
        await wire.socket.until("session.closed")
        await asyncio.wait_for(wire.running, 20)
        assert (await bench.engine.stats()).active_turns == 0


async def test_an_end_while_the_engine_opens_the_session_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, opened = bench.engine.open, asyncio.Event()

    async def unheard(*arguments: Any, **options: Any) -> str:
        await really(*arguments, **options)
        opened.set()
        return await asyncio.Future()

    async with connect(bench) as wire:
        monkeypatch.setattr(bench.engine, "open", unheard)
        wire.say("hello")
        await asyncio.wait_for(opened.wait(), 20)
        session = wire.registry.find(wire.socket.sent[0]["session"]["id"])
        assert session is not None
        await wire.registry.terminate(
            session, CloseCode.CLOSED_BY_OPERATOR, "the session was deleted"
        )
        await asyncio.wait_for(wire.running, 20)


async def test_a_binary_frame_closes(bench: Bench) -> None:
    async with connect(bench) as wire:
        wire.socket.frames.put_nowait(b"{}")
        await asyncio.wait_for(wire.running, 20)
        assert wire.socket.closed is not None
        assert wire.socket.closed[0] is CloseCode.UNSUPPORTED_DATA


async def test_bad_frames_close_only_in_a_row(bench: Bench) -> None:
    async with connect(bench, Limits(bad_frames_max=3)) as wire:
        for _ in range(3):
            wire.socket.frames.put_nowait("x")
            wire.socket.frames.put_nowait("y")
            wire.socket.put(type="input_audio_buffer.clear")
        await wire.socket.until("input_audio_buffer.cleared", 3)
        for _ in range(3):
            wire.socket.frames.put_nowait("x")
        await asyncio.wait_for(wire.running, 20)
        assert wire.socket.closed is not None
        assert wire.socket.closed[0] is CloseCode.INVALID_DATA
        errors = [event for event in wire.socket.sent if event["type"] == "error"]
        assert len(errors) == 9, "the last one is still explained"


@pytest.mark.parametrize("extra", [0, 1])
async def test_the_frame_limit_is_in_bytes(bench: Bench, extra: int) -> None:
    async with connect(bench, Limits(frame_bytes_max=200)) as wire:
        frame = '{"type": "input_audio_buffer.clear", "event_id": "e", "x": "'
        frame += "é" * ((198 - len(frame)) // 2)
        frame += "x" * (198 + extra - len(frame.encode())) + '"}'
        assert len(frame.encode()) == 200 + extra
        wire.socket.frames.put_nowait(frame)
        if extra:
            error = (await wire.socket.until("error"))["error"]
            assert (error["code"], error["event_id"]) == ("frame_too_large", "e")
            assert "201 bytes" in error["message"]
            assert "200 bytes" in error["message"]
        else:
            await wire.socket.until("input_audio_buffer.cleared")


async def test_too_many_sessions_are_sent_away(bench: Bench) -> None:
    async with connect(bench, Limits(connected_sessions_max=0)) as wire:
        await asyncio.wait_for(wire.running, 20)
        assert [event["type"] for event in wire.socket.sent] == ["error"]
        assert wire.socket.sent[0]["error"]["code"] == "rate_limit_exceeded"
        assert wire.socket.closed is not None
        assert wire.socket.closed[0] is CloseCode.TRY_AGAIN_LATER


async def test_a_slow_reader_is_hung_up_on_and_nothing_stays(bench: Bench) -> None:
    limits = Limits(outbox_bytes_max=2000, outbox_over_limit_s_max=0.05)
    async with connect(bench, limits) as wire:
        await wire.socket.until("session.created")
        wire.socket.reading.clear()
        for _ in range(20):
            wire.say("hello")
        await asyncio.wait_for(wire.running, 20)
        assert wire.socket.closed is not None
        assert wire.socket.closed[0] is CloseCode.TRY_AGAIN_LATER
        assert not wire.socket.frames.empty(), "it was not read from any more"


async def test_a_fault_of_ours_is_an_error_and_not_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(bench) as wire:
        created = await wire.socket.until("session.created")
        session = wire.registry.find(created["session"]["id"])
        assert session is not None

        async def broken(ask: ConversationCommand, once: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(session, "execute", broken)
        wire.socket.put(type="response.create", event_id="e1")
        error = (await wire.socket.until("error"))["error"]
        assert (error["type"], error["event_id"]) == ("server_error", "e1")
        monkeypatch.undo()
        wire.say("hello")
        await wire.socket.until("conversation.item.done")
    assert "ZeroDivisionError" in caplog.text

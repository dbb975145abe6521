"""Liveness check: a peer that resumes a session of another connection must first answer a ping.

A gateway that was suspended may read a resume request whose client disconnected long ago.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.realtime.registry.test_takeover import gates
from tests.support.engines import EngineHarness
from tests.support.frames import CLOSE, PING, PONG, RawWebSocket, encode_frame
from tests.support.resuming import ResumingClient
from tests.support.sessions import EventRecorder
from tests.support.web_servers import RunningServer, serve_harness, wait_close_code

pytestmark = pytest.mark.slow

__all__ = ["gates"]
LIMITS = Limits(liveness_timeout_s=0.3)


@pytest.fixture
async def running(bench: EngineHarness) -> AsyncIterator[RunningServer]:
    async with serve_harness(bench, GatewaySettings(limits=LIMITS)) as running:
        yield running


@contextlib.asynccontextmanager
async def connected_session(running: RunningServer) -> AsyncIterator[tuple[ClientConnection, str]]:
    """A connection with a new session, and the id of the session."""
    async with connect(running.url) as socket:
        created = json.loads(await socket.recv())
        yield socket, created["session"]["id"]


async def append_item(socket: ClientConnection, name: str) -> None:
    """Append an item; returns when the gateway has acknowledged it, as owner of the session."""
    await socket.send(item(name))
    while json.loads(await asyncio.wait_for(socket.recv(), 20))["type"] != ITEM_DONE:
        pass


ITEM_DONE = "conversation.item.done"


def item(name: str) -> str:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    return json.dumps({"type": "conversation.item.create", "item": item})


async def request_resume(running: RunningServer, session_id: str) -> RawWebSocket:
    return await RawWebSocket.connect(running.port, path=f"/v1/realtime?session_id={session_id}")


async def test_silent_peer_does_not_take_over_a_session(running: RunningServer) -> None:
    async with connected_session(running) as (socket, session_id):
        await append_item(socket, "u1")
        silent = await request_resume(running, session_id)
        ping = await silent.receive()
        assert ping is not None
        assert ping.opcode == PING
        refusal = await silent.receive()
        assert refusal is not None
        event = json.loads(refusal.payload)
        assert (event["type"], event["error"]["code"]) == ("error", "connection_lost")
        assert await silent.wait_close_code() == 1013
        silent.close()
        await append_item(socket, "u2")


@pytest.mark.parametrize("reset", [False, True])
async def test_disconnected_peer_does_not_take_over_a_session(
    running: RunningServer, reset: bool
) -> None:
    async with connected_session(running) as (socket, session_id):
        await append_item(socket, "u1")
        disconnected = await request_resume(running, session_id)
        disconnected.reset() if reset else disconnected.close()
        while len(running.server.server_state.tasks) > 1:
            await asyncio.sleep(0.01)
        await append_item(socket, "u2")


async def test_peer_that_answers_the_ping_takes_over_the_session(running: RunningServer) -> None:
    """Items that the peer sends before and after the ping are not lost."""
    async with connected_session(running) as (socket, session_id):
        await append_item(socket, "u1")
        peer = await request_resume(running, session_id)
        await peer.send(encode_frame(item("u2")))
        ping = await peer.receive()
        assert ping is not None
        assert ping.opcode == PING
        await peer.send(encode_frame(item("u3")), encode_frame(ping.payload, PONG))
        events = [await peer.receive_event() for _ in range(7)]
        assert [event["type"] for event in events[:1]] == ["session.updated"]
        done = [event["item"]["id"] for event in events if event["type"] == ITEM_DONE]
        assert done == ["u1", "u2", "u3"]
        assert await wait_close_code(socket) == 4001
        await peer.send(encode_frame(opcode=CLOSE))
        peer.close()


async def test_resume_of_a_parked_session_sends_no_ping(running: RunningServer) -> None:
    async with connected_session(running) as (socket, session_id):
        await append_item(socket, "u1")
    while len(running.registry):
        await asyncio.sleep(0.01)
    peer = await request_resume(running, session_id)
    first = await peer.receive()
    assert first is not None
    assert json.loads(first.payload)["type"] == "session.updated"
    peer.close()


async def test_liveness_is_checked_again_if_the_session_moved_meanwhile(
    gates: tuple[Registry, Registry],
) -> None:
    """During the liveness check of one gateway, a client resumes the session on the other."""
    client = ResumingClient(gates[0])
    client.connect()
    client.send_message("u1", "hello")
    await client.socket.wait_for(ITEM_DONE)
    client.receive()
    checks: list[str] = []

    async def is_alive() -> bool:
        checks.append("ping")
        if len(checks) > 1:
            return False
        client.registry = gates[1]
        client.resume()
        await client.socket.wait_for("session.updated")
        return True

    request = ResumeRequest(client.session_id, client.received[-1]["event_id"])
    for gate in gates:
        checks.clear()
        with pytest.raises(Refusal) as refused:
            await gate.resume(
                request, EventRecorder(), Credentials(), lambda code, reason: None, is_alive
            )
        assert refused.value.code == "connection_lost"
        assert len(checks) == 2
    client.send_message("u2", "hello")
    await client.socket.wait_for(ITEM_DONE)
    assert client.socket.closed is None
    await client.disconnect()

"""Liveness check: a peer that resumes a session of another connection must first answer a ping.

A gateway that was suspended may read a resume request whose client disconnected long ago.
"""

import asyncio
import json
from typing import cast

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.transport.socket import PING_EXTENSION, StarletteSocket
from tests.realtime.registry.test_takeover import registries
from tests.support.clients import JsonEvent, message_item, open_realtime_session
from tests.support.frames import CLOSE, PING, PONG, RawWebSocket, encode_frame
from tests.support.in_process_client import connect_client
from tests.support.sessions import EventRecorder
from tests.support.web_servers import RunningServer

pytestmark = pytest.mark.slow

__all__ = ["registries"]
LIMITS = Limits(liveness_timeout_s=0.3)


ITEM_DONE = "conversation.item.done"


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    return GatewaySettings(limits=LIMITS)


def create_event(name: str) -> JsonEvent:
    return {"type": "conversation.item.create", "item": message_item("hello", name)}


async def request_resume(server: RunningServer, session_id: str) -> RawWebSocket:
    return await RawWebSocket.connect(server.port, path=f"/v1/realtime?session_id={session_id}")


async def test_silent_peer_does_not_take_over_a_session(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello", "u1")
        silent = await request_resume(server, client.session_id)
        ping = await silent.receive()
        assert ping is not None
        assert ping.opcode == PING
        refusal = await silent.receive()
        assert refusal is not None
        event = json.loads(refusal.payload)
        assert (event["type"], event["error"]["code"]) == ("error", "connection_lost")
        assert await silent.wait_close_code() == 1013
        silent.close()
        await client.add_message("hello", "u2")


@pytest.mark.parametrize("reset", [False, True])
async def test_disconnected_peer_does_not_take_over_a_session(
    server: RunningServer, reset: bool
) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello", "u1")
        disconnected = await request_resume(server, client.session_id)
        disconnected.reset() if reset else disconnected.close()
        while len(server.web_server.server_state.tasks) > 1:
            await asyncio.sleep(0.01)
        await client.add_message("hello", "u2")


async def test_peer_that_answers_the_ping_takes_over_the_session(server: RunningServer) -> None:
    """Items that the peer sends before and after the ping are not lost."""
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello", "u1")
        peer = await request_resume(server, client.session_id)
        await peer.send_event(**create_event("u2"))
        ping = await peer.receive()
        assert ping is not None
        assert ping.opcode == PING
        await peer.send_event(**create_event("u3"))
        await peer.send(encode_frame(ping.payload, PONG))
        events = [await peer.receive_event() for _ in range(7)]
        assert [event["type"] for event in events[:1]] == ["session.updated"]
        done = [event["item"]["id"] for event in events if event["type"] == ITEM_DONE]
        assert done == ["u1", "u2", "u3"]
        assert await client.wait_close_code() == 4001
        await peer.send(encode_frame(opcode=CLOSE))
        peer.close()


class EndlessMessages:
    """A WebSocket of Starlette whose peer answers no ping and sends short messages for ever."""

    def __init__(self) -> None:
        pong = asyncio.get_running_loop().create_future()
        self.scope = {"extensions": {PING_EXTENSION: {"ask": lambda: pong}}}

    async def receive(self) -> Message:
        return {"type": "websocket.receive", "text": "{}"}


async def test_few_short_messages_are_kept_while_a_ping_is_unanswered() -> None:
    socket = StarletteSocket(cast("WebSocket", EndlessMessages()))
    assert not await socket.ping(0.05)
    assert 1000 < len(socket._received_ahead) < 5000
    assert await socket.recv() == "{}"


async def test_resume_of_a_parked_session_sends_no_ping(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello", "u1")
    while len(server.registry):
        await asyncio.sleep(0.01)
    peer = await request_resume(server, client.session_id)
    first = await peer.receive()
    assert first is not None
    assert json.loads(first.payload)["type"] == "session.updated"
    peer.close()


async def test_liveness_is_checked_again_if_the_session_moved_meanwhile(
    registries: tuple[Registry, Registry],
) -> None:
    """During the liveness check of one gateway, a client resumes the session on the other."""
    client = await connect_client(registries[0])
    client.send_message("hello", "u1")
    await client.socket.wait_for(ITEM_DONE)
    client.receive()
    checks: list[str] = []

    async def is_alive() -> bool:
        checks.append("ping")
        if len(checks) > 1:
            return False
        client.registry = registries[1]
        client.resume()
        await client.socket.wait_for("session.updated")
        return True

    request = ResumeRequest(client.session_id, client.received[-1]["event_id"])
    for registry in registries:
        checks.clear()
        with pytest.raises(Refusal) as refused:
            await registry.resume(
                request, EventRecorder(), Credentials(), lambda code, reason: None, is_alive
            )
        assert refused.value.code == "connection_lost"
        assert len(checks) == 2
    client.send_message("hello", "u2")
    await client.socket.wait_for(ITEM_DONE)
    assert client.socket.closed is None
    await client.disconnect()

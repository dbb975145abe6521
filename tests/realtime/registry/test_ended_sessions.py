"""Ended sessions and connections are freed by reference counts alone.

If thousands of sessions left reference cycles, a pass of the garbage collector would stall every
stream.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.engines import digest_engine
from tests.support.frames import RawWebSocket, encode_frame
from tests.support.garbage import garbage_of_block
from tests.support.waiting import wait_until
from tests.support.web_servers import RunningServer, serve_harness

pytestmark = pytest.mark.slow

LIMITS = Limits(resume_window_s=0.1, detach_grace_s=0.05)
REPETITIONS = 3
END_EVENTS = ("response.completed", "response.incomplete")


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[RunningServer]:
    async with (
        digest_engine(
            chat_model, pages=256, page_size=4, max_model_len=400, batched_tokens=64, step_s=0.002
        ) as harness,
        serve_harness(harness, GatewaySettings(limits=LIMITS)) as server,
    ):
        yield server


async def start_response(peer: RawWebSocket, **response: object) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"type": "message", "role": "user", "content": content}
    await peer.send_event(type="conversation.item.create", item=item)
    await peer.wait_for("conversation.item.done")
    await peer.send_event(type="response.create", response={"max_output_tokens": 200, **response})
    await peer.wait_for("response.output_text.delta")


async def close_session(peer: RawWebSocket) -> None:
    await peer.send_event(type="session.close")
    assert await peer.wait_close_code() == 1000
    peer.close()


async def respond_twice(server: RunningServer) -> None:
    peer = await RawWebSocket.connect(server.port)
    await start_response(peer)
    await peer.wait_for("response.done")
    await start_response(peer, conversation="none")
    await peer.wait_for("response.done")
    await close_session(peer)


async def cancel_responses(server: RunningServer) -> None:
    peer = await RawWebSocket.connect(server.port)
    await start_response(peer)
    await peer.send_event(type="response.cancel")
    await peer.wait_for("response.done")
    await start_response(peer)
    await close_session(peer)


async def send_invalid_events(server: RunningServer) -> None:
    peer = await RawWebSocket.connect(server.port)
    await start_response(peer)
    await peer.send(encode_frame("{no"))
    await peer.wait_for("error")
    for type in ("conversation.item.retrieve", "conversation.item.delete", "unheard of"):
        await peer.send_event(type=type, item_id="none")
        await peer.wait_for("error")
    await close_session(peer)


async def reset_connection(server: RunningServer) -> None:
    """Reset the connection during a response; the session expires."""
    peer = await RawWebSocket.connect(server.port)
    await start_response(peer)
    peer.reset()


async def resume_session(server: RunningServer) -> None:
    first = await RawWebSocket.connect(server.port)
    created = await first.wait_for("session.created")
    await start_response(first)
    session_id, last_event_id = created["session"]["id"], created["event_id"]
    second = await RawWebSocket.connect(
        server.port, path=f"/v1/realtime?session_id={session_id}&last_event_id={last_event_id}"
    )
    await second.wait_for("session.updated")
    assert await first.wait_close_code() == 4001
    first.close()
    await second.wait_for("response.done")
    await close_session(second)


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def respond_over_websocket(server: RunningServer) -> None:
    """Run a response to its end, a part of another one, and a refused one."""
    peer = await RawWebSocket.connect(server.port, path="/v1/responses")
    await peer.send_event(type="response.create", input="hello", tools=[TOOL], max_output_tokens=16)
    while (event := await peer.receive_event())["type"] not in END_EVENTS:
        assert event["type"] != "error", event
    await peer.send_event(type="response.create", input="hello", max_output_tokens=200)
    await peer.wait_for("response.output_text.delta")
    await peer.send_event(type="response.create", input={})
    await peer.wait_for("error")
    peer.close()


async def respond_over_http(server: RunningServer) -> None:
    """Run a response over HTTP to its end."""
    body = json.dumps({"input": "hello", "max_output_tokens": 16, "stream": True, "tools": [TOOL]})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
    received = await asyncio.wait_for(reader.read(), 60)
    assert any(kind.encode() in received for kind in END_EVENTS)
    writer.close()


Scenario = Callable[[RunningServer], Awaitable[None]]


@pytest.mark.parametrize(
    "scenario",
    [
        respond_twice,
        cancel_responses,
        send_invalid_events,
        reset_connection,
        resume_session,
        respond_over_websocket,
        respond_over_http,
    ],
)
async def test_ended_session_leaves_nothing_to_the_garbage_collector(
    server: RunningServer, scenario: Scenario
) -> None:
    await run_to_end(server, scenario)
    with garbage_of_block() as garbage:
        for _ in range(REPETITIONS):
            await run_to_end(server, scenario)
    assert not garbage


async def run_to_end(server: RunningServer, scenario: Scenario) -> None:
    """Run a scenario and wait until the server has no session, task or connection."""
    await scenario(server)
    state = server.web_server.server_state
    await wait_until(
        lambda: (
            not (server.registry.open_sessions.of_tenant("") or state.tasks or state.connections)
        ),
        60,
    )

"""What has ended is freed at once: nothing of it waits for the garbage collector, whose look at all
that thousands of sessions have left would stop every stream."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.engines import digest_engine
from tests.support.frames import Peer, frame
from tests.support.web_servers import Running, serve

LIMITS = Limits(resume_window_s=0.1, detach_grace_s=0.05)
LIVES = 3
ENDS = ("response.completed", "response.incomplete")


@pytest.fixture
async def running(chatty: Path) -> AsyncIterator[Running]:
    async with (
        digest_engine(
            chatty, pages=256, page_size=4, max_model_len=400, batched_tokens=64, step_s=0.002
        ) as bench,
        serve(bench, GatewaySettings(limits=LIMITS)) as running,
    ):
        yield running


async def ask(peer: Peer, **response: object) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"type": "message", "role": "user", "content": content}
    await peer.say(type="conversation.item.create", item=item)
    await peer.until("conversation.item.done")
    await peer.say(type="response.create", response={"max_output_tokens": 200, **response})
    await peer.until("response.output_text.delta")


async def end(peer: Peer) -> None:
    await peer.say(type="session.close")
    assert await peer.close_code() == 1000
    peer.close()


async def talk(running: Running) -> None:
    peer = await Peer.connect(running.port)
    await ask(peer)
    await peer.until("response.done")
    await ask(peer, conversation="none")
    await peer.until("response.done")
    await end(peer)


async def interrupt(running: Running) -> None:
    peer = await Peer.connect(running.port)
    await ask(peer)
    await peer.say(type="response.cancel")
    await peer.until("response.done")
    await ask(peer)
    await end(peer)


async def err(running: Running) -> None:
    peer = await Peer.connect(running.port)
    await ask(peer)
    await peer.send(frame("{no"))
    await peer.until("error")
    for type in ("conversation.item.retrieve", "conversation.item.delete", "unheard of"):
        await peer.say(type=type, item_id="none")
        await peer.until("error")
    await end(peer)


async def drop(running: Running) -> None:
    """And not come back."""
    peer = await Peer.connect(running.port)
    await ask(peer)
    peer.reset()


async def come_back(running: Running) -> None:
    first = await Peer.connect(running.port)
    created = await first.until("session.created")
    await ask(first)
    name, seen = created["session"]["id"], created["event_id"]
    again = await Peer.connect(
        running.port, path=f"/v1/realtime?session_id={name}&last_event_id={seen}"
    )
    await again.until("session.updated")
    assert await first.close_code() == 4001
    first.close()
    await again.until("response.done")
    await end(again)


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def respond(running: Running) -> None:
    """Over a WebSocket: one to its end, and a part of another."""
    peer = await Peer.connect(running.port, path="/v1/responses")
    await peer.say(type="response.create", input="hello", tools=[TOOL], max_output_tokens=16)
    while (event := await peer.event())["type"] not in ENDS:
        assert event["type"] != "error", event
    await peer.say(type="response.create", input="hello", max_output_tokens=200)
    await peer.until("response.output_text.delta")
    await peer.say(type="response.create", input={})
    await peer.until("error")
    peer.close()


async def post(running: Running) -> None:
    """One to its end."""
    body = json.dumps({"input": "hello", "max_output_tokens": 16, "stream": True, "tools": [TOOL]})
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
    heard = await asyncio.wait_for(reader.read(), 60)
    assert any(end.encode() in heard for end in ENDS)
    writer.close()


LIFE = Callable[[Running], Awaitable[None]]


@pytest.mark.parametrize("live", [talk, interrupt, err, drop, come_back, respond, post])
async def test_nothing_is_left_to_collect(running: Running, live: LIFE) -> None:
    await lived(running, live)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(LIVES):
            await lived(running, live)
        gc.collect()
        left = Counter(type(one).__qualname__ for one in gc.garbage if _ours(one))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


async def lived(running: Running, live: LIFE) -> None:
    """To the last of what the server does about it."""
    await live(running)
    state = running.server.server_state
    async with asyncio.timeout(60):
        while running.registry.list_sessions("") or state.tasks or state.connections:
            await asyncio.sleep(0.01)


def _ours(one: object) -> bool:
    return type(one).__module__.partition(".")[0] in ("engine", "realtime")

"""A client's event_id is a promise: the same thing asked twice is done once, here and elsewhere."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from realtime.session import Registry
from tests.realtime.resume.returning import Client
from tests.realtime.talks import registry_of
from tests.support.engines import Bench

ASKS: dict[str, dict[str, object]] = {
    "an item without an id": {
        "type": "conversation.item.create",
        "item": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        },
    },
    "words": {"type": "input_text_buffer.append", "text": "some words "},
    "settings": {
        "type": "session.update",
        "session": {"type": "realtime", "instructions": "be kind"},
    },
}


@pytest.fixture
async def registry(bench: Bench) -> AsyncIterator[Registry]:
    registry = await registry_of(bench)
    yield registry
    await registry.aclose()


async def again(client: Client, elsewhere: bool) -> None:
    """Comes back to the session, or to what the store knows of it."""
    await client.drop()
    client.take()
    if elsewhere:
        await client.registry._forget(client.registry._sessions[client.session_id])
    client.resume()
    await client.socket.until("session.updated")


async def probe(client: Client) -> None:
    """Everything before it has been answered."""
    client.socket.put(type="input_audio_buffer.clear")
    await client.socket.until("input_audio_buffer.cleared")


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("what", ASKS)
async def test_it_is_done_once(registry: Registry, what: str, elsewhere: bool) -> None:
    client = Client(registry)
    client.connect()
    client.socket.put(event_id="mine", **ASKS[what])
    client.socket.put(event_id="mine", **ASKS[what])
    await probe(client)
    session = registry.find(client.socket.sent[0]["session"]["id"])
    assert session is not None
    before = [item.id for item in session.conversation.items()], session._history.draft
    await again(client, elsewhere)
    client.socket.put(event_id="mine", **ASKS[what])
    await probe(client)
    session = registry.find(client.session_id)
    assert session is not None
    now = [item.id for item in session.conversation.items()], session._history.draft
    assert now == before
    assert not [event for event in client.socket.sent if event["type"] == "error"]
    client.socket.put(type="input_text_buffer.append", text="other", event_id="mine")
    error = (await client.socket.until("error"))["error"]
    assert (error["code"], error["event_id"]) == ("idempotency_conflict", "mine")
    assert "'mine'" in error["message"]
    await client.drop()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_response_is_made_once(registry: Registry, bench: Bench, elsewhere: bool) -> None:
    client = Client(registry)
    client.connect()
    client.say("u1", "hello")
    ask = {"type": "response.create", "response": {"max_output_tokens": 30}, "event_id": "mine"}
    client.socket.put(**ask)
    client.socket.put(**ask)
    first = await client.socket.until("response.created")
    second = await client.socket.until("response.created", 2)
    assert first["response"]["id"] == second["response"]["id"]
    await client.socket.until("rate_limits.updated")
    drawn = (await bench.engine.stats()).tokens_drawn
    await again(client, elsewhere)
    client.socket.put(**ask)
    done = await client.socket.until("response.done")
    assert done["response"]["id"] == first["response"]["id"]
    await asyncio.sleep(0.05)
    assert (await bench.engine.stats()).tokens_drawn == drawn
    await client.drop()

"""A client's event_id is a promise: the same thing asked twice is done once, here and elsewhere."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.registry.registry import Registry
from tests.support.engines import Bench
from tests.support.resuming import Client, Event
from tests.support.sessions import registry_of

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


async def again(client: Client, elsewhere: bool, seen: int | None = None) -> None:
    """Comes back to the session, or to what the store knows of it, having seen all that was said,
    or the first events of it."""
    await client.drop()
    client.take(seen)
    if elsewhere:
        await client.registry._unload_and_wait(client.registry._sessions[client.session_id])
    client.resume()
    await client.socket.until("session.updated")


async def probe(client: Client, count: int = 1) -> None:
    """Everything before it has been answered. `count`: it is the second one of this connection."""
    client.socket.put(type="input_audio_buffer.clear")
    await client.socket.until("input_audio_buffer.cleared", count)


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
    before = [item.id for item in session.conversation.items()], session._unit_of_work.draft
    await again(client, elsewhere)
    client.socket.put(event_id="mine", **ASKS[what])
    await probe(client)
    session = registry.find(client.session_id)
    assert session is not None
    now = [item.id for item in session.conversation.items()], session._unit_of_work.draft
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


# ---------------------------------------------------------------- all that was not acknowledged


def created(item_id: str, event_id: str) -> Event:
    content = [{"type": "input_text", "text": "words"}]
    item = {"id": item_id, "type": "message", "role": "user", "content": content}
    return {"type": "conversation.item.create", "event_id": event_id, "item": item}


def deleted(item_id: str, event_id: str) -> Event:
    return {"type": "conversation.item.delete", "event_id": event_id, "item_id": item_id}


def long_answer(event_id: str, **more: object) -> Event:
    response = {"max_output_tokens": 100, "ignore_eos": True, **more}
    return {"type": "response.create", "event_id": event_id, "response": response}


def items(client: Client) -> list[str]:
    session = client.registry.find(client.session_id)
    assert session is not None
    return [item.id for item in session.conversation.items()]


async def resent(client: Client, window: list[Event], elsewhere: bool, *, seen: int) -> list[Event]:
    """Comes back having seen only the first events, asks all again; gives what it hears of it."""
    await again(client, elsewhere, seen)
    await probe(client)
    before = len(client.socket.sent)
    for ask in window:
        client.socket.put(**ask)
    await probe(client, 2)
    return client.socket.sent[before:-1]


def ends(client: Client) -> dict[str, set[str]]:
    """What was told of how each response ended."""
    told: dict[str, set[str]] = {}
    for event in client.socket.sent:
        if event["type"] == "response.done":
            response = event["response"]
            told.setdefault(response["id"], set()).add(response["status"])
    return told


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_item_that_is_gone_is_not_made_again(registry: Registry, elsewhere: bool) -> None:
    client = Client(registry)
    client.connect()
    long = "\U0001f600" * 128
    window: list[Event] = [
        created("stays", "e0"),
        created("goes", "e1"),
        deleted("goes", "d1"),
        created(long, "e2"),
        {"type": "input_text_buffer.append", "text": "some words", "event_id": "a1"},
        {"type": "input_text_buffer.commit", "event_id": "c1"},
    ]
    for ask in window:
        client.socket.put(**ask)
    committed = (await client.socket.until("input_text_buffer.committed"))["item_id"]
    window.append(deleted(committed, "d2"))
    client.socket.put(**window[-1])
    await client.socket.until("conversation.item.deleted", 2)
    heard = await resent(client, window, elsewhere, seen=1)
    assert items(client) == ["stays", long]
    added, gone = ["conversation.item.added", "conversation.item.done"], "conversation.item.deleted"
    assert [event["type"] for event in heard] == [
        *added,
        *added,
        gone,  # as it was told, and as it is
        gone,
        *added,
        "input_text_buffer.appended",
        "input_text_buffer.committed",
        gone,
        gone,
    ]
    assert heard[2]["item"] == {**created("goes", "")["item"], **heard[2]["item"]}
    assert heard[4]["item_id"] == "goes"
    await client.drop()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("running", ["the answer", "none", "one beside it"])
async def test_a_cancel_is_not_of_the_next_answer(
    registry: Registry, bench: Bench, running: str, elsewhere: bool
) -> None:
    client = Client(registry)
    client.connect()
    bench.runner.step_s = 0.002
    client.say("u1", "hello")
    await client.socket.until("conversation.item.done")
    apart = running == "one beside it"
    first: str | None = None
    if running != "none":
        client.socket.put(**long_answer("r1", **({"conversation": "none"} if apart else {})))
        first = (await client.socket.until("response.created"))["response"]["id"]
        await client.socket.until("response.output_text.delta")
    cancel: Event = {"type": "response.cancel", "event_id": "c1"}
    if apart:
        cancel["response_id"] = first
    seen = len(client.socket.sent)
    client.socket.put(**cancel)
    if first is None:
        await client.socket.until("error")
    else:
        await client.socket.until("response.done")
    window = [cancel, created("u2", "i2"), long_answer("r2")]
    client.socket.put(**window[1])
    client.socket.put(**window[2])
    second = (await client.socket.until("response.created", 2 if first else 1))["response"]["id"]
    heard = await resent(client, window, elsewhere, seen=seen)
    heard_of = 0
    while second not in ends(client):
        heard_of += 1
        await client.socket.until("response.done", heard_of)
    assert ends(client)[second] == {"incomplete"}, "nobody has cancelled it"
    answered = next(event for event in heard if event["type"] in ("error", "response.done"))
    if first is None:
        error = answered["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
    else:
        assert ends(client)[first] == {"cancelled"}
        assert answered["response"]["id"] == first
    await client.drop()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_cancel_that_was_not_heard_of_is_done(
    registry: Registry, bench: Bench, elsewhere: bool
) -> None:
    client = Client(registry)
    client.connect()
    bench.runner.step_s = 0.002
    client.say("u1", "hello")
    client.socket.put(**long_answer("r1"))
    await client.socket.until("response.output_text.delta")
    await again(client, elsewhere)
    for _ in range(2):
        client.socket.put(type="response.cancel", event_id="c1")
    await client.socket.until("response.done")
    await probe(client)
    assert list(ends(client).values()) == [{"cancelled"}]
    assert not [event for event in client.socket.sent if event["type"] == "error"]
    await client.drop()

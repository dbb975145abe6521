"""Idempotency keys: a command sent twice under one event_id runs once, also after a resume."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.registry.registry import Registry
from tests.support.clients import JsonEvent
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient, connect_client
from tests.support.sessions import create_registry, unload

pytestmark = pytest.mark.slow

COMMANDS: dict[str, dict[str, object]] = {
    "an item without an id": {
        "type": "conversation.item.create",
        "item": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        },
    },
    "text buffer": {"type": "input_text_buffer.append", "text": "some words "},
    "settings": {
        "type": "session.update",
        "session": {"type": "realtime", "instructions": "be kind"},
    },
}


@pytest.fixture
async def registry(harness: EngineHarness) -> AsyncIterator[Registry]:
    registry = await create_registry(harness)
    yield registry
    await registry.aclose()


async def resume(client: InProcessClient, from_store: bool, seen: int | None = None) -> None:
    """Reconnect and resume the session, from the store if `from_store`, after the first `seen`
    events of the last connection (None: all of them)."""
    await client.disconnect()
    client.receive(seen)
    if from_store:
        await unload(client.registry, client.session_id)
    client.resume()
    await client.socket.wait_for("session.updated")


async def processed(client: InProcessClient, count: int = 1) -> None:
    """Wait until all earlier commands are processed; `count`: calls on this connection so far."""
    client.socket.push_event(type="input_audio_buffer.clear")
    await client.socket.wait_for("input_audio_buffer.cleared", count)


@pytest.mark.parametrize("from_store", [False, True])
@pytest.mark.parametrize("kind", COMMANDS)
async def test_command_sent_again_under_its_event_id_runs_once(
    registry: Registry, kind: str, from_store: bool
) -> None:
    client = await connect_client(registry)
    client.socket.push_event(event_id="mine", **COMMANDS[kind])
    client.socket.push_event(event_id="mine", **COMMANDS[kind])
    await processed(client)
    session = registry.find(client.socket.sent[0]["session"]["id"])
    assert session is not None
    before = [item.id for item in session.conversation.items()], session._unit_of_work.draft
    await resume(client, from_store)
    client.socket.push_event(event_id="mine", **COMMANDS[kind])
    await processed(client)
    session = registry.find(client.session_id)
    assert session is not None
    after = [item.id for item in session.conversation.items()], session._unit_of_work.draft
    assert after == before
    assert not [event for event in client.socket.sent if event["type"] == "error"]
    client.socket.push_event(type="input_text_buffer.append", text="other", event_id="mine")
    error = (await client.socket.wait_for("error"))["error"]
    assert (error["code"], error["event_id"]) == ("idempotency_conflict", "mine")
    assert "'mine'" in error["message"]
    await client.disconnect()


@pytest.mark.parametrize("from_store", [False, True])
async def test_response_create_sent_again_generates_one_response(
    registry: Registry, harness: EngineHarness, from_store: bool
) -> None:
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    command = {"type": "response.create", "response": {"max_output_tokens": 30}, "event_id": "mine"}
    client.socket.push_event(**command)
    client.socket.push_event(**command)
    first = await client.socket.wait_for("response.created")
    second = await client.socket.wait_for("response.created", 2)
    assert first["response"]["id"] == second["response"]["id"]
    await client.socket.wait_for("rate_limits.updated")
    drawn = (await harness.engine.fleet.stats()).tokens_drawn
    await resume(client, from_store)
    client.socket.push_event(**command)
    done = await client.socket.wait_for("response.done")
    assert done["response"]["id"] == first["response"]["id"]
    await asyncio.sleep(0.05)
    assert (await harness.engine.fleet.stats()).tokens_drawn == drawn
    await client.disconnect()


# ---------------------------------------------------------------- resending after a resume


def create_item(item_id: str, event_id: str) -> JsonEvent:
    content = [{"type": "input_text", "text": "words"}]
    item = {"id": item_id, "type": "message", "role": "user", "content": content}
    return {"type": "conversation.item.create", "event_id": event_id, "item": item}


def delete_item(item_id: str, event_id: str) -> JsonEvent:
    return {"type": "conversation.item.delete", "event_id": event_id, "item_id": item_id}


def create_long_response(event_id: str, **more: object) -> JsonEvent:
    response = {"max_output_tokens": 100, "ignore_eos": True, **more}
    return {"type": "response.create", "event_id": event_id, "response": response}


def item_ids(client: InProcessClient) -> list[str]:
    session = client.registry.find(client.session_id)
    assert session is not None
    return [item.id for item in session.conversation.items()]


async def resend(
    client: InProcessClient, commands: list[JsonEvent], from_store: bool, *, seen: int
) -> list[JsonEvent]:
    """Resume after the first `seen` events and send `commands` again. Returns what the server
    sends in response."""
    await resume(client, from_store, seen)
    await processed(client)
    before = len(client.socket.sent)
    for command in commands:
        client.socket.push_event(**command)
    await processed(client, 2)
    return client.socket.sent[before:-1]


def final_statuses(client: InProcessClient) -> dict[str, set[str]]:
    """The statuses sent at the end of each response, by its id."""
    statuses: dict[str, set[str]] = {}
    for event in client.socket.sent:
        if event["type"] == "response.done":
            response = event["response"]
            statuses.setdefault(response["id"], set()).add(response["status"])
    return statuses


@pytest.mark.parametrize("from_store", [False, True])
async def test_deleted_item_is_not_created_again_by_a_retry(
    registry: Registry, from_store: bool
) -> None:
    client = await connect_client(registry)
    long = "\U0001f600" * 128
    commands: list[JsonEvent] = [
        create_item("stays", "e0"),
        create_item("goes", "e1"),
        delete_item("goes", "d1"),
        create_item(long, "e2"),
        {"type": "input_text_buffer.append", "text": "some words", "event_id": "a1"},
        {"type": "input_text_buffer.commit", "event_id": "c1"},
    ]
    for command in commands:
        client.socket.push_event(**command)
    committed = (await client.socket.wait_for("input_text_buffer.committed"))["item_id"]
    commands.append(delete_item(committed, "d2"))
    client.socket.push_event(**commands[-1])
    await client.socket.wait_for("conversation.item.deleted", 2)
    events = await resend(client, commands, from_store, seen=1)
    assert item_ids(client) == ["stays", long]
    added = ["conversation.item.added", "conversation.item.done"]
    removed = "conversation.item.deleted"
    assert [event["type"] for event in events] == [
        *added,
        *added,
        removed,  # of "e1", whose item has been deleted since
        removed,
        *added,
        "input_text_buffer.appended",
        "input_text_buffer.committed",
        removed,
        removed,
    ]
    assert events[2]["item"] == {**create_item("goes", "")["item"], **events[2]["item"]}
    assert events[4]["item_id"] == "goes"
    await client.disconnect()


@pytest.mark.parametrize("from_store", [False, True])
@pytest.mark.parametrize("running", ["in the conversation", "none", "out of band"])
async def test_repeated_cancel_does_not_cancel_the_next_response(
    registry: Registry, harness: EngineHarness, running: str, from_store: bool
) -> None:
    client = await connect_client(registry)
    harness.runner.step_s = 0.002
    client.send_message("hello", "u1")
    await client.socket.wait_for("conversation.item.done")
    out_of_band = running == "out of band"
    first: str | None = None
    if running != "none":
        client.socket.push_event(
            **create_long_response("r1", **({"conversation": "none"} if out_of_band else {}))
        )
        first = (await client.socket.wait_for("response.created"))["response"]["id"]
        await client.socket.wait_for("response.output_text.delta")
    cancel: JsonEvent = {"type": "response.cancel", "event_id": "c1"}
    if out_of_band:
        cancel["response_id"] = first
    seen = len(client.socket.sent)
    client.socket.push_event(**cancel)
    if first is None:
        await client.socket.wait_for("error")
    else:
        await client.socket.wait_for("response.done")
    commands = [cancel, create_item("u2", "i2"), create_long_response("r2")]
    client.socket.push_event(**commands[1])
    client.socket.push_event(**commands[2])
    second = (await client.socket.wait_for("response.created", 2 if first else 1))["response"]["id"]
    events = await resend(client, commands, from_store, seen=seen)
    ended = 0
    while second not in final_statuses(client):
        ended += 1
        await client.socket.wait_for("response.done", ended)
    assert final_statuses(client)[second] == {"incomplete"}, "the cancel reached the next response"
    outcome = next(event for event in events if event["type"] in ("error", "response.done"))
    if first is None:
        error = outcome["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
    else:
        assert final_statuses(client)[first] == {"cancelled"}
        assert outcome["response"]["id"] == first
    await client.disconnect()


@pytest.mark.parametrize("from_store", [False, True])
async def test_cancel_whose_outcome_was_not_received_runs_once(
    registry: Registry, harness: EngineHarness, from_store: bool
) -> None:
    client = await connect_client(registry)
    harness.runner.step_s = 0.002
    client.send_message("hello", "u1")
    client.socket.push_event(**create_long_response("r1"))
    await client.socket.wait_for("response.output_text.delta")
    await resume(client, from_store)
    for _ in range(2):
        client.socket.push_event(type="response.cancel", event_id="c1")
    await client.socket.wait_for("response.done")
    await processed(client)
    assert list(final_statuses(client).values()) == [{"cancelled"}]
    assert not [event for event in client.socket.sent if event["type"] == "error"]
    await client.disconnect()

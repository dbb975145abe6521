"""Sessions in a real Redis that is paused, flushed, failed over, and killed and restarted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import encode_entry, to_entries
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry import recovery
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import open_store
from continuo.realtime.store.keys import LAYOUT, session_keys
from tests.support.clients import JsonEvent
from tests.support.engines import EngineHarness
from tests.support.in_process_client import connect_client, resume_result
from tests.support.redis_process import RedisProcess, needs_redis, running_redis
from tests.support.sessions import SLOW_STEP_S, unload
from tests.support.waiting import wait_until

pytestmark = [needs_redis, pytest.mark.redis]


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    async with running_redis(tmp_path, "--appendonly", "yes") as process:
        yield process


@pytest.fixture
async def registry(harness: EngineHarness, redis: RedisProcess) -> AsyncIterator[Registry]:
    store = await open_store(redis.url)
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(harness.engine, template, GenerationSettings(), Limits(), store)
    yield registry
    await registry.aclose()
    await store.aclose()


async def test_response_continues_and_appends_are_refused_while_redis_is_paused(
    registry: Registry, redis: RedisProcess
) -> None:
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    client.start_response(100)
    await client.socket.wait_for("response.output_text.delta")
    redis.pause()
    try:
        client.send_message("lost", "u2")
        error = (await client.socket.wait_for("error"))["error"]
        await client.socket.wait_for("response.done")
    finally:
        redis.resume()
    assert (error["code"], error["type"]) == ("store_unavailable", "server_error")
    session = registry.find(client.socket.sent[0]["session"]["id"])
    assert session is not None
    assert session.conversation.find("u2") is None, "the refused append changed nothing"
    await wait_until_available(registry)
    client.send_message("hello again", "u2")
    added = await client.socket.wait_for("conversation.item.added", 3)
    assert added["item"]["id"] == "u2"
    await client.disconnect()


async def wait_until_available(registry: Registry) -> None:
    """Wait until the health probe has found the store available again."""
    while not registry._store.is_available:
        await asyncio.sleep(0.01)


async def test_queued_commands_are_refused_without_a_timeout_each(
    registry: Registry, redis: RedisProcess, harness: EngineHarness
) -> None:
    """The first command waits for its timeout; the others, queued behind it, are refused at once.

    So a cancel that is queued behind them reaches the response in time.
    """
    harness.runner.step_s = 0.02
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    response = {"max_output_tokens": 300, "ignore_eos": True}
    client.socket.push_event(type="response.create", response=response)
    await client.socket.wait_for("response.output_text.delta")
    redis.pause()
    try:
        for n in range(20):
            client.send_message("lost", f"late{n}")
        client.socket.push_event(type="response.cancel", event_id="c1")
        last = await client.socket.wait_for("error", 20)
        done = await client.socket.wait_for("response.done")
    finally:
        redis.resume()
    assert last["error"]["code"] == "store_unavailable"
    assert done["response"]["status"] == "cancelled", "twenty timeouts outlast the response"
    await wait_until_available(registry)
    client.send_message("hello again", "u2")
    while not any(done_item_id(event) == "u2" for event in client.socket.sent):
        await asyncio.sleep(0.01)
    await client.disconnect()


async def test_flushed_session_is_rewritten_if_loaded_and_else_not_found(
    registry: Registry, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that no gateway has is unknown, once its owner would have written it again."""
    monkeypatch.setattr(recovery, "GRACE_S", 0.0)
    loaded, unloaded = await connect_client(registry), await connect_client(registry)
    for client in (loaded, unloaded):
        client.send_message("hello", "u1")
        await client.socket.wait_for("conversation.item.done")
        client.receive()
    await unloaded.disconnect()
    parked = registry.find(unloaded.session_id)
    assert parked is not None
    await unload(registry, unloaded.session_id)
    async with redis.client() as admin:
        await admin.flushall()
    loaded.send_message("still there?", "u2")
    await loaded.socket.wait_for("conversation.item.done", 2)
    await loaded.disconnect()
    loaded.receive()
    unloaded.resume()
    await unloaded.wait_closed()
    assert [event["error"]["code"] for event in unloaded.socket.sent] == ["store_unavailable"]
    registry.recovery.check()
    await wait_until(lambda: not registry.recovery.is_recovering)
    unloaded.resume()
    await unloaded.wait_closed()
    assert [event["error"]["code"] for event in unloaded.socket.sent] == ["session_not_found"]
    await unload(registry, loaded.session_id)
    loaded.resume()
    await loaded.socket.wait_for("conversation.item.done", 2)
    assert resume_result(loaded.socket)["resumed"] == "snapshot", "another store epoch"
    await loaded.disconnect()


async def test_session_of_a_newer_version_is_refused_until_a_newer_gateway_has_it(
    registry: Registry, redis: RedisProcess
) -> None:
    client = await connect_client(registry)
    client.send_message("u1", "hello")
    await client.socket.wait_for("conversation.item.done")
    await client.disconnect()
    client.receive()
    await unload(registry, client.session_id)
    meta = session_keys(client.session_id).meta
    async with redis.client() as admin:
        await admin.hset(meta, "layout", LAYOUT + 1)
        client.resume()
        await client.wait_closed()
        await admin.hset(meta, "layout", LAYOUT)
    (event,) = client.socket.sent
    assert event["error"]["code"] == "store_unavailable"
    assert f"is stored in layout {LAYOUT + 1} by another version" in event["error"]["message"]
    assert client.socket.closed is not None
    assert client.socket.closed[0] == CloseCode.TRY_AGAIN_LATER
    client.resume()
    await client.socket.wait_for("session.updated")
    assert resume_result(client.socket)["resumed"] == "exact"
    await client.disconnect()


async def dump_keys(redis: RedisProcess) -> dict[Any, Any]:
    """A dump of every key: the data of a replica at this moment."""
    async with redis.client() as admin:
        keys = await admin.keys("*")
        async with admin.pipeline(transaction=True) as steps:
            for key in keys:
                steps.dump(key)
            return dict(zip(keys, await steps.execute(), strict=True))


async def restore_keys(redis: RedisProcess, dump: dict[Any, Any]) -> None:
    """Restore `dump`; writes acknowledged after it was taken are lost, as in a failover."""
    async with redis.client() as admin, admin.pipeline(transaction=True) as steps:
        steps.flushall()
        for key, value in dump.items():
            steps.restore(key, 0, value)
        await steps.execute()


async def test_writes_lost_in_a_failover_are_written_again(
    registry: Registry, redis: RedisProcess, harness: EngineHarness
) -> None:
    """The first failover loses the end of a response, the second one the claim of its session."""
    harness.runner.step_s = SLOW_STEP_S
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    client.start_response(30)
    await client.socket.wait_for("response.created")
    dump = await dump_keys(redis)
    await client.socket.wait_for("response.done")
    await restore_keys(redis, dump)
    client.send_message("still there?", "u2")
    while not any(done_item_id(event) == "u2" for event in client.socket.sent):
        await asyncio.sleep(0.01)
    await client.disconnect()
    client.receive()
    session = registry.find(client.session_id)
    assert session is not None
    found = await registry._store.load(client.session_id)
    assert found is not None
    assert found.running_responses == ()
    assert found.entries == tuple(
        encode_entry(piece) for piece in to_entries(session.conversation, ())
    )
    await unload(registry, client.session_id)
    dump = await dump_keys(redis)
    client.resume()
    await client.socket.wait_for("session.updated")
    assert resume_result(client.socket)["resumed"] == "exact"
    await restore_keys(redis, dump)
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": "u3", "type": "message", "role": "user", "content": content}
    client.socket.push_event(type="conversation.item.create", event_id="ask-3", item=item)
    assert (await client.socket.wait_for("conversation.item.done"))["item"]["id"] == "u3"
    await client.disconnect()


def done_item_id(event: JsonEvent) -> str | None:
    return event["item"]["id"] if event["type"] == "conversation.item.done" else None


async def test_session_is_written_and_resumed_after_redis_restarts(
    registry: Registry, redis: RedisProcess
) -> None:
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    await client.socket.wait_for("conversation.item.done")
    redis.kill()
    client.send_message("lost", "u2")
    await client.socket.wait_for("error")
    await redis.start()
    client.send_message("found", "u3")
    await client.socket.wait_for("conversation.item.done", 2)
    client.start_response(5)
    await client.socket.wait_for("rate_limits.updated")
    await client.disconnect()
    client.receive()
    await unload(registry, client.session_id)
    client.resume()
    await client.socket.wait_for("session.updated")
    session = registry.find(client.session_id)
    assert session is not None
    assert [item.id for item in session.conversation.items()][:2] == ["u1", "u3"]
    await client.disconnect()

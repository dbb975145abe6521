"""With a real Redis that goes away, comes back, and comes back empty."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import encode_entry, to_entries
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import open_store
from tests.support.engines import Bench
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.resuming import Event, connected, resumed
from tests.support.sessions import SLOW_S

pytestmark = needs_redis


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path, "--appendonly", "yes")
    await process.start()
    yield process
    process.stop()


@pytest.fixture
async def registry(bench: Bench, redis: RedisProcess) -> AsyncIterator[Registry]:
    store = await open_store(redis.url)
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, GenerationSettings(), Limits(), store)
    yield registry
    await registry.aclose()
    await store.aclose()


async def test_an_answer_goes_on_and_appends_are_refused(
    registry: Registry, redis: RedisProcess
) -> None:
    client = await connected(registry)
    client.say("u1", "hello")
    client.respond(100)
    await client.socket.until("response.output_text.delta")
    redis.pause()
    try:
        start = time.monotonic()
        client.say("u2", "lost")
        error = (await client.socket.until("error"))["error"]
        waited = time.monotonic() - start
        await client.socket.until("response.done")
    finally:
        redis.go_on()
    assert (error["code"], error["type"]) == ("store_unavailable", "server_error")
    assert waited < 5, "0.9 s, and slack for a slow machine"
    session = registry.find(client.socket.sent[0]["session"]["id"])
    assert session is not None
    assert session.conversation.find("u2") is None, "nothing has changed"
    await there(registry)
    client.say("u2", "hello again")
    added = await client.socket.until("conversation.item.added", 3)
    assert added["item"]["id"] == "u2"
    await client.drop()


async def there(registry: Registry) -> None:
    """The store answers again, and that is known."""
    began = time.monotonic()
    while not registry._store.is_available:
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < 10, "2 s, and slack for a slow machine"


async def test_all_that_waits_is_refused_at_once(
    registry: Registry, redis: RedisProcess, bench: Bench
) -> None:
    """One after the other: what stands behind does not wait as long again, and a cancel is no
    longer kept from the answer."""
    bench.runner.step_s = 0.02
    client = await connected(registry)
    client.say("u1", "hello")
    response = {"max_output_tokens": 300, "ignore_eos": True}
    client.socket.put(type="response.create", response=response)
    await client.socket.until("response.output_text.delta")
    redis.pause()
    try:
        start = time.monotonic()
        for n in range(20):
            client.say(f"late{n}", "lost")
        client.socket.put(type="response.cancel", event_id="c1")
        last = await client.socket.until("error", 20)
        done = await client.socket.until("response.done")
        waited = time.monotonic() - start
    finally:
        redis.go_on()
    assert last["error"]["code"] == "store_unavailable"
    assert done["response"]["status"] == "cancelled"
    assert waited < 6, "0.9 s for the first, 0.9 s for the end of the answer, and slack"
    await there(registry)
    client.say("u2", "hello again")
    while not any(named(event) == "u2" for event in client.socket.sent):
        await asyncio.sleep(0.01)
    await client.drop()


async def test_what_was_flushed_is_given_again_or_said_to_be_gone(
    registry: Registry, redis: RedisProcess
) -> None:
    here, gone = await connected(registry), await connected(registry)
    for client in (here, gone):
        client.say("u1", "hello")
        await client.socket.until("conversation.item.done")
        client.take()
    await gone.drop()
    parked = registry.find(gone.session_id)
    assert parked is not None
    await registry._unload_and_wait(registry._sessions[gone.session_id])  # it is in the store alone
    async with redis.client() as admin:
        await admin.flushall()
    here.say("u2", "still there?")
    await here.socket.until("conversation.item.done", 2)
    await here.drop()
    here.take()
    gone.resume()
    await gone.gone()
    assert [event["error"]["code"] for event in gone.socket.sent] == ["session_not_found"]
    await registry._unload_and_wait(registry._sessions[here.session_id])
    here.resume()
    await here.socket.until("conversation.item.done", 2)
    assert resumed(here.socket)["resumed"] == "snapshot", "another store, other positions"
    await here.drop()


async def copied(redis: RedisProcess) -> dict[Any, Any]:
    """As a replica has it."""
    async with redis.client() as admin:
        keys = await admin.keys("*")
        async with admin.pipeline(transaction=True) as steps:
            for key in keys:
                steps.dump(key)
            return dict(zip(keys, await steps.execute(), strict=True))


async def fail_over(redis: RedisProcess, kept: dict[Any, Any]) -> None:
    """What was confirmed after that is lost."""
    async with redis.client() as admin, admin.pipeline(transaction=True) as steps:
        steps.flushall()
        for key, value in kept.items():
            steps.restore(key, 0, value)
        await steps.execute()


async def test_what_a_fail_over_lost_is_given_again(
    registry: Registry, redis: RedisProcess, bench: Bench
) -> None:
    """The end of an answer; then the right of who has the session."""
    bench.runner.step_s = SLOW_S
    client = await connected(registry)
    client.say("u1", "hello")
    client.respond(30)
    await client.socket.until("response.created")
    kept = await copied(redis)
    await client.socket.until("response.done")
    await fail_over(redis, kept)
    client.say("u2", "still there?")
    while not any(named(event) == "u2" for event in client.socket.sent):
        await asyncio.sleep(0.01)
    await client.drop()
    client.take()
    session = registry.find(client.session_id)
    assert session is not None
    found = await registry._store.load(client.session_id)
    assert found is not None
    assert found.running_responses == ()
    assert found.entries == tuple(
        encode_entry(piece) for piece in to_entries(session.conversation, ())
    )
    await registry._unload_and_wait(registry._sessions[client.session_id])
    kept = await copied(redis)
    client.resume()
    await client.socket.until("session.updated")
    assert resumed(client.socket)["resumed"] == "exact"
    await fail_over(redis, kept)
    content = [{"type": "input_text", "text": "hello"}]
    asked = {"id": "u3", "type": "message", "role": "user", "content": content}
    client.socket.put(type="conversation.item.create", event_id="ask-3", item=asked)
    assert (await client.socket.until("conversation.item.done"))["item"]["id"] == "u3"
    await client.drop()


def named(event: Event) -> str | None:
    return event["item"]["id"] if event["type"] == "conversation.item.done" else None


async def test_killed_and_started_again(registry: Registry, redis: RedisProcess) -> None:
    client = await connected(registry)
    client.say("u1", "hello")
    await client.socket.until("conversation.item.done")
    redis.kill()
    client.say("u2", "lost")
    await client.socket.until("error")
    await redis.start()
    client.say("u3", "found")
    await client.socket.until("conversation.item.done", 2)
    client.respond(5)
    await client.socket.until("rate_limits.updated")
    await client.drop()
    client.take()
    await registry._unload_and_wait(registry._sessions[client.session_id])
    client.resume()
    await client.socket.until("session.updated")
    session = registry.find(client.session_id)
    assert session is not None
    assert [item.id for item in session.conversation.items()][:2] == ["u1", "u3"]
    await client.drop()

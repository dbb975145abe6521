"""Where a conversation's KV is, as clients are told: when they look, when they come back, and with
the answer that needed it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.status import KVStatus
from tests.support.engines import Bench, digest_engine
from tests.support.resuming import Client, resumed
from tests.support.sessions import registry_of


@pytest.fixture(params=[0, 24], ids=["dropped", "spilled"])
async def crowded(chatty: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Its pool holds one conversation, but not two; the host may hold the other."""
    async with digest_engine(
        chatty, pages=24, max_model_len=96, batched_tokens=64, host_pages=request.param
    ) as bench:
        yield bench


async def begun(registry: Registry) -> Client:
    client = Client(registry)
    client.connect()
    await answered(client, 48)
    client.take()
    while (status := await registry.status(client.session_id, "")) is None or (
        status.kv.tokens < status.tokens
    ):
        await asyncio.sleep(0.005)  # all of it is there soon
    return client


async def answered(client: Client, tokens: int) -> str:
    """Where the answer has found the KV."""
    client.say(f"u{tokens}", "hi")
    wish = {"max_output_tokens": tokens, "ignore_eos": True}
    client.socket.put(type="response.create", response=wish)
    turn = 1 + sum(event["type"] == "rate_limits.updated" for event in client.socket.sent)
    done = await client.socket.until("response.done", turn)
    await client.socket.until("rate_limits.updated", turn)
    assert done["response"]["usage"]["output_tokens"] == tokens
    return done["response"]["usage"]["residency"]


async def look(registry: Registry, client: Client) -> KVStatus:
    status = await registry.status(client.session_id, "")
    assert status is not None
    return status.kv


async def returned(client: Client) -> str:
    """Where the KV is, as it is told to who comes back."""
    client.take()
    await client.drop()
    client.resume()
    await client.socket.until("session.updated")
    return resumed(client.socket)["kv"]


async def test_what_others_have_pushed_out(crowded: Bench) -> None:
    registry = await registry_of(crowded)
    idle, other = await begun(registry), await begun(registry)
    spills = (await crowded.engine.stats()).host_pages_total > 0
    whole, rest = await look(registry, other), await look(registry, idle)
    assert (whole.place, whole.host_tokens, whole.lost_tokens) == ("device", 0, 0)
    assert 0 < rest.tokens < whole.tokens
    assert rest.tokens + rest.host_tokens + rest.lost_tokens == whole.tokens
    if spills:
        assert (rest.place, rest.lost_tokens) == ("host", 0)
        assert rest.host_pages > 0
    else:
        assert (rest.place, rest.host_tokens, rest.host_pages) == ("device", 0, 0)
    assert await returned(other) == "hot"
    assert await returned(idle) == ("host" if spills else "recomputed")
    assert await answered(idle, 2) == ("host" if spills else "recomputed")
    kept = await look(registry, idle)
    assert (kept.place, kept.host_tokens, kept.lost_tokens) == ("device", 0, 0)
    await idle.drop()
    await other.drop()
    await registry.aclose()


async def test_what_an_engine_took_with_it(bench: Bench) -> None:
    registry = await registry_of(bench)
    client = await begun(registry)
    bench.kill()
    assert await answered(client, 2) == "recomputed"
    await client.drop()
    await registry.aclose()


async def test_what_was_loaded_from_the_store(bench: Bench) -> None:
    one, two = await registry_of(bench), await registry_of(bench)
    client = await begun(one)
    await client.drop()
    await one.aclose()
    client.registry = two
    client.resume()
    await client.socket.until("session.updated")
    assert resumed(client.socket)["kv"] == "recomputed"
    assert await answered(client, 2) == "recomputed"
    await client.drop()
    await two.aclose()

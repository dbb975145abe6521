"""KV residency as clients see it: in the status of a session, on resume, and in the usage of a
response."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.status import KVStatus
from tests.support.engines import EngineHarness, digest_engine
from tests.support.in_process_client import InProcessClient, connect_client, resume_result
from tests.support.sessions import create_registry
from tests.support.upstream_engines import upstream_engine
from tests.support.upstream_servers import FakeVllm


@pytest.fixture(params=[0, 24], ids=["no host tier", "host tier"])
async def small_harness(
    chat_model: Path, request: pytest.FixtureRequest
) -> AsyncIterator[EngineHarness]:
    """An engine whose device holds the KV of one conversation, not of two; a host tier or none."""
    async with digest_engine(
        chat_model, pages=24, max_model_len=96, batched_tokens=64, host_pages=request.param
    ) as harness:
        yield harness


async def client_with_kv(registry: Registry) -> InProcessClient:
    client = await connect_client(registry)
    await residency_of_response(client, 48)
    client.receive()
    while (status := await registry.status(client.session_id, "")) is None or (
        status.kv.tokens < status.tokens
    ):
        await asyncio.sleep(0.005)  # until all of its KV is computed
    return client


async def residency_of_response(client: InProcessClient, tokens: int) -> str:
    """Request a response of `tokens` tokens. Returns the residency from its usage."""
    client.send_message("hi", f"u{tokens}")
    settings = {"max_output_tokens": tokens, "ignore_eos": True}
    client.socket.push_event(type="response.create", response=settings)
    turn = 1 + sum(event["type"] == "rate_limits.updated" for event in client.socket.sent)
    done = await client.socket.wait_for("response.done", turn)
    await client.socket.wait_for("rate_limits.updated", turn)
    assert done["response"]["usage"]["output_tokens"] == tokens
    return done["response"]["usage"]["residency"]


async def kv_status(registry: Registry, client: InProcessClient) -> KVStatus:
    status = await registry.status(client.session_id, "")
    assert status is not None
    return status.kv


async def residency_after_resume(client: InProcessClient) -> str:
    """Reconnect. Returns the residency from the resume report."""
    client.receive()
    await client.disconnect()
    client.resume()
    await client.socket.wait_for("session.updated")
    return resume_result(client.socket)["kv"]


async def test_kv_on_a_server_that_does_not_report_it_is_unknown(chat_model: Path) -> None:
    async with upstream_engine(chat_model, FakeVllm()) as harness:
        registry = await create_registry(harness)
        client = await connect_client(registry)
        assert await residency_of_response(client, 8) == "unknown"
        client.receive()
        kv = await kv_status(registry, client)
        assert (kv.place, kv.host_tokens, kv.lost_tokens) == ("unknown", 0, 0)
        assert kv.tokens > 0
        assert await residency_after_resume(client) == "unknown"


async def test_kv_evicted_by_another_session_is_reported(small_harness: EngineHarness) -> None:
    registry = await create_registry(small_harness)
    idle, other = await client_with_kv(registry), await client_with_kv(registry)
    spills = (await small_harness.engine.fleet.stats()).host_pages_total > 0
    resident, evicted = await kv_status(registry, other), await kv_status(registry, idle)
    assert (resident.place, resident.host_tokens, resident.lost_tokens) == ("device", 0, 0)
    assert 0 < evicted.tokens < resident.tokens
    assert evicted.tokens + evicted.host_tokens + evicted.lost_tokens == resident.tokens
    if spills:
        assert (evicted.place, evicted.lost_tokens) == ("host", 0)
        assert evicted.host_pages > 0
    else:
        assert (evicted.place, evicted.host_tokens, evicted.host_pages) == ("device", 0, 0)
    assert await residency_after_resume(other) == "hot"
    assert await residency_after_resume(idle) == ("host" if spills else "recomputed")
    assert await residency_of_response(idle, 2) == ("host" if spills else "recomputed")
    kept = await kv_status(registry, idle)
    assert (kept.place, kept.host_tokens, kept.lost_tokens) == ("device", 0, 0)
    await idle.disconnect()
    await other.disconnect()
    await registry.aclose()


async def test_kv_lost_with_its_engine_is_recomputed(harness: EngineHarness) -> None:
    registry = await create_registry(harness)
    client = await client_with_kv(registry)
    harness.kill()
    assert await residency_of_response(client, 2) == "recomputed"
    await client.disconnect()
    await registry.aclose()


async def test_kv_of_a_session_loaded_from_the_store_is_recomputed(harness: EngineHarness) -> None:
    one, two = await create_registry(harness), await create_registry(harness)
    client = await client_with_kv(one)
    await client.disconnect()
    await one.aclose()
    client.registry = two
    client.resume()
    await client.socket.wait_for("session.updated")
    assert resume_result(client.socket)["kv"] == "recomputed"
    assert await residency_of_response(client, 2) == "recomputed"
    await client.disconnect()
    await two.aclose()

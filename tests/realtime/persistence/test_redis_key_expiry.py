"""Expiry of everything in Redis: whatever gateways leave there goes away, if none is left to remove
it."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import keys, open_store
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.redis_process import needs_redis, running_redis
from tests.support.sessions import SLOW_STEP_S
from tests.support.web_servers import serve_harness

pytestmark = [needs_redis, pytest.mark.redis]

KEYS = """
[tenants.acme]
connections_max = 20
running_responses_max = 10
requests_per_minute = 600
tokens_per_minute = 100_000
stored_bytes_max = 100_000_000
[[keys]]
key = "key-one"
tenant = "acme"
"""
PERMANENT = {keys.LAYOUT_KEY, keys.EPOCH_KEY, keys.DEADLINES_KEY, keys.ENGINES_KEY}
"""Keys that never expire. There is one of each, whatever clients do."""


async def expiries(client: "Redis") -> dict[str, int]:
    """The TTL of each key in seconds; -1: none."""
    return {key.decode(): await client.ttl(key) async for key in client.scan_iter()}


async def test_every_key_has_a_ttl_after_a_mix_of_everything(
    harness: EngineHarness, tmp_path: Path
) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    settings = GatewaySettings(
        api_keys_file=str(tmp_path / "keys.toml"), served_model_name=("demo",), secret=b"x" * 16
    )
    body = {"model": "demo", "input": "hi", "max_output_tokens": 3}
    async with running_redis(tmp_path / "redis") as redis:
        store = await open_store(redis.url)
        async with (
            serve_harness(harness, settings, store) as server,
            server.registry.tenants.exchanging(store),
            Redis.from_url(redis.url) as client,
        ):
            async with open_realtime_session(server.url) as parked:
                await parked.send_message("hello", event_id="once")
                item = (await parked.wait_for("conversation.item.done"))["item"]["id"]
                await parked.complete_response(max_output_tokens=3)
                await parked.send("conversation.item.delete", item_id=item)
                await parked.wait_for("conversation.item.deleted")
                fork = f"{server.url}?fork={parked.session_id}"
                async with connect_realtime(fork) as forked:
                    await forked.expect("session.created")
            async with open_realtime_session(server.url) as ended:
                await ended.add_message("gone soon")
            await server.request("DELETE", f"/v1/realtime/sessions/{ended.session_id}")
            _, stored = await server.request("POST", "/v1/responses", body)
            await server.request(
                "POST", "/v1/responses", {**body, "previous_response_id": stored["id"]}
            )
            _, talk = await server.request("POST", "/v1/conversations", {})
            await server.request("POST", "/v1/responses", {**body, "conversation": talk["id"]})
            harness.runner.step_s = SLOW_STEP_S
            long = {**body, "max_output_tokens": 200, "ignore_eos": True, "background": True}
            _, running = await server.request("POST", "/v1/responses", long)
            async with open_realtime_session(server.url) as talking:
                await talking.start_response(max_output_tokens=200, ignore_eos=True)
                await talking.wait_for("response.output_text.delta")
                await server.registry.tenants.exchange(store)
                found = await expiries(client)
            await server.request("POST", f"/v1/responses/{running['id']}/cancel")
            harness.runner.step_s = 0
            found |= await expiries(client)
            await store.tenants.delete_records("acme")
            found |= await expiries(client)
        await store.aclose()
    session, tenant = keys.session_keys(parked.session_id), keys.tenant_keys("acme")
    kinds = {*session[:3], session.idempotency_keys, session.events, *tenant}
    kinds |= {keys.session_keys(talking.session_id).running, keys.TENANTS_DELETED_KEY}
    kinds |= {keys.response_key(stored["id"])}
    assert kinds - found.keys() == set(), "the mix leaves keys of every kind"
    forever = {key for key, ttl in found.items() if ttl < 0} - PERMANENT
    assert forever == set()

"""Limits on what a tenant has at a time, at several gateways of one Redis."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TenantLimits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store, open_store
from continuo.realtime.tenants.tenants import COUNTS_LEASE_S, Tenants
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.processes import ROOT
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import wait_until
from tests.support.web_servers import RunningServer, serve_harness

KEYS = """
[tenants.{tenant}]
connections_max = 3
running_responses_max = 2
waiting_responses_max = 3
[[keys]]
key = "key-one"
tenant = "{tenant}"
"""
HOLDER = """
import asyncio, contextlib, sys
from continuo.realtime.limits import TenantLimits
from continuo.realtime.store import open_store
from continuo.realtime.tenants.tenants import Tenants

async def main(url, name):
    tenants = Tenants(limits_of=lambda *_: TenantLimits(connections_max=3))
    tenant, store = tenants.of(name), await open_store(url)
    with tenant.ledger.connected(), tenant.ledger.connected():
        async with tenants.exchanging(store):
            await asyncio.sleep(0.6)
            print("published", flush=True)
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""
"""A gateway, as far as tenants are concerned, that holds two connections."""


def make_tenants(**limits: int) -> Tenants:
    return Tenants(limits_of=lambda *_: TenantLimits(**limits))


@contextlib.asynccontextmanager
async def gateway(
    harness: EngineHarness, url: str, folder: Path, tenant: str
) -> AsyncIterator[RunningServer]:
    file = folder / "keys.toml"
    file.write_text(KEYS.format(tenant=tenant))
    settings = GatewaySettings(
        api_keys_file=str(file), served_model_name=("demo",), secret=b"x" * 16
    )
    store: Store = await open_store(url)
    async with (
        serve_harness(harness, settings, store) as server,
        server.registry.tenants.exchanging(store),
    ):
        yield server
    await store.aclose()


async def test_connections_and_turns_count_at_all_gateways(
    harness: EngineHarness, redis: RedisProcess, tmp_path: Path
) -> None:
    name = "counted-everywhere"
    async with (
        gateway(harness, redis.url, tmp_path, name) as one,
        gateway(harness, redis.url, tmp_path, name) as other,
    ):
        tenants = [server.registry.tenants.of(name) for server in (one, other)]
        ledgers = [tenant.ledger for tenant in tenants]
        async with (
            open_realtime_session(one.url),
            open_realtime_session(one.url),
            open_realtime_session(other.url),
        ):
            await wait_until(lambda: [each.elsewhere.connections for each in ledgers] == [1, 2])
            for server in (one, other):
                async with connect_realtime(server.url) as refused:
                    error = (await refused.expect("error"))["error"]
                    assert "3 connections of tenant" in error["message"]
                    assert await refused.wait_close_code() == 1013
        await wait_until(lambda: all(each.elsewhere.connections == 0 for each in ledgers))

        harness.runner.step_s = SLOW_STEP_S
        body = {"input": "hi", "max_output_tokens": 300, "ignore_eos": True, "background": True}

        async def begin(server: RunningServer) -> str:
            status, response = await server.request("POST", "/v1/responses", body)
            assert status == 200, response
            return response["id"]

        async with open_realtime_session(other.url):
            begun = [await begin(one) for _ in range(2)]
            await wait_until(lambda: ledgers[1].elsewhere.running_turns == 2)
            for _ in range(3):
                await begin(other)
            turns = tenants[1].turns
            assert (turns.running_count, turns.waiting_count) == (0, 3)
            status, refused_body = await other.request("POST", "/v1/responses", body)
            assert status == 429
            message = "2 responses in generation and 3 waiting; the limits are 2 and 3"
            assert message in refused_body["error"]["message"]
            for response_id in begun:
                await one.request("POST", f"/v1/responses/{response_id}/cancel")
            await wait_until(lambda: turns.running_count == 2)
        harness.runner.step_s = 0


def start_holder(url: str, tenant: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, tenant],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.process
async def test_killed_gateway_holds_nothing_after_its_lease(redis: RedisProcess) -> None:
    name, store = "of-a-killed-gateway", await open_store(redis.url)
    holder = start_holder(redis.url, name)
    try:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"published\n"
        tenants = make_tenants(connections_max=3)
        tenant = tenants.of(name)
        with tenant.ledger.connected():
            await tenants.exchange(store)
            assert tenant.ledger.elsewhere.connections == 2
            with pytest.raises(Refusal, match="3 connections of tenant"), tenant.ledger.connected():
                pass
            holder.kill()
            holder.wait()
            async with asyncio.timeout(COUNTS_LEASE_S + 20):
                while tenant.ledger.elsewhere.connections:
                    await asyncio.sleep(0.1)
                    await tenants.exchange(store)
            with tenant.ledger.connected():
                pass
    finally:
        holder.kill()
        holder.wait()
        await store.aclose()


@pytest.mark.process
@needs_redis
async def test_gateway_without_its_store_applies_the_limits_alone(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path / "redis")
    await redis.start()
    store, other = await open_store(redis.url), await open_store(redis.url)
    holder, tenants = make_tenants(connections_max=1), make_tenants(connections_max=1)
    tenant = tenants.of("acme")
    with holder.of("acme").ledger.connected():
        await holder.exchange(other)
        async with tenants.exchanging(store):
            with tenant.ledger.connected():
                await wait_until(lambda: tenant.ledger.elsewhere.connections == 1)
            with pytest.raises(Refusal), tenant.ledger.connected():
                pass
            redis.kill()
            await wait_until(lambda: tenant.ledger.elsewhere.connections == 0)
            with tenant.ledger.connected():
                pass
    await store.aclose()
    await other.aclose()


async def test_first_connection_at_a_gateway_counts_those_of_the_others(
    redis: RedisProcess,
) -> None:
    """A gateway that has never seen the tenant admits no more than the others leave."""
    store, other = await open_store(redis.url), await open_store(redis.url)
    holder, tenants = make_tenants(connections_max=2), make_tenants(connections_max=2)
    tenant = tenants.of("busy-elsewhere")
    with holder.of(tenant.name).ledger.connected(), holder.of(tenant.name).ledger.connected():
        await holder.exchange(other)
        async with tenants.exchanging(store):
            await asyncio.gather(*(tenants.follow(tenant.name) for _ in range(5)))
            with pytest.raises(Refusal), tenant.ledger.connected():
                pass
    await store.aclose()
    await other.aclose()

"""Control of a gateway by its operator: list the sessions of all tenants, evict, delete, drain."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.processes import read_gateway_url, running_process
from tests.support.waiting import wait_until
from tests.support.web_servers import RunningServer, serve_harness

KEYS = """
[[keys]]
key = "reader-key"
tenant = "acme"

[[keys]]
key = "operator-key"
tenant = "operations"
scopes = ["admin"]
"""
READER, OPERATOR = ({"Authorization": f"Bearer {key}"} for key in ("reader-key", "operator-key"))


@pytest.fixture
async def server(harness: EngineHarness, tmp_path: Path) -> AsyncIterator[RunningServer]:
    (tmp_path / "keys.toml").write_text(KEYS)
    settings = GatewaySettings(
        api_keys_file=str(tmp_path / "keys.toml"), served_model_name=("demo",)
    )
    async with serve_harness(harness, settings) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/admin/sessions"),
        ("POST", "/v1/admin/sessions/sess_x/evict"),
        ("DELETE", "/v1/admin/sessions/sess_x"),
        ("POST", "/v1/admin/drain"),
        ("GET", "/metrics"),
    ],
)
async def test_control_needs_the_scope_admin(server: RunningServer, method: str, path: str) -> None:
    assert (await server.request(method, path, headers={}))[0] == 401
    status, body = await server.request(method, path, headers=READER)
    assert (status, body["error"]["code"]) == (403, "insufficient_scope")


async def test_sessions_of_all_tenants_are_listed_with_their_age(server: RunningServer) -> None:
    async with open_realtime_session(server.url, READER) as client:
        _, listed = await server.request("GET", "/v1/admin/sessions", headers=OPERATOR)
        (session,) = listed["data"]
        assert (session["id"], session["tenant"]) == (client.session_id, "acme")
        assert session["is_connected"]
        assert 0 <= session["age_s"] < 60
        assert session["state"] == "idle"
    await wait_until(lambda: not len(server.registry))
    _, listed = await server.request("GET", "/v1/admin/sessions", headers=OPERATOR)
    assert not listed["data"][0]["is_connected"]


async def test_evicted_session_is_resumed_exactly(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with open_realtime_session(server.url, READER) as client:
        await client.add_message("hello")
        await client.complete_response(max_output_tokens=6)
        path = f"/v1/admin/sessions/{client.session_id}/evict"
        assert await server.request("POST", path, headers=OPERATOR) == (
            200,
            {"id": client.session_id, "object": "realtime.session", "evicted": True},
        )
        assert await client.wait_close_code() == 1012
        assert server.registry.find(client.session_id, "acme") is None
        assert await harness.engine.fleet.list_sessions() == []
        status, body = await server.request("POST", path, headers=OPERATOR)
        assert (status, body["error"]["code"]) == (404, "session_not_found")
        await client.resume(server.url, READER)
        resumed = await client.receive()
        assert resumed["session"]["resume"]["resumed"] == "exact"
        await client.add_message("and again")
        assert await client.complete_response(max_output_tokens=6)


async def test_response_of_an_evicted_session_continues_when_resumed(
    server: RunningServer, harness: EngineHarness
) -> None:
    harness.runner.step_s = 0.02
    async with open_realtime_session(server.url, READER) as client:
        await client.add_message("hello")
        response = await client.start_response(max_output_tokens=60, ignore_eos=True)
        await client.wait_deltas(3)
        path = f"/v1/admin/sessions/{client.session_id}/evict"
        assert (await server.request("POST", path, headers=OPERATOR))[0] == 200
        assert await client.wait_close_code() == 1012
        harness.runner.step_s = 0
        await client.resume(server.url, READER)
        text = await client.wait_response(response)
        ended = client.ended_responses[response]
    assert ended["usage"]["output_tokens"] == 60
    assert ended["output"][0]["content"][0]["text"] == text


async def test_parked_session_is_evicted(server: RunningServer) -> None:
    async with open_realtime_session(server.url, READER) as client:
        pass
    await wait_until(lambda: not len(server.registry))
    path = f"/v1/admin/sessions/{client.session_id}/evict"
    assert (await server.request("POST", path, headers=OPERATOR))[0] == 200
    assert server.registry.open_sessions.ids == []
    async with connect_realtime(f"{server.url}?{client.resume_query}", READER) as resumed:
        assert (await resumed.receive())["session"]["resume"]["resumed"] == "exact"


async def test_deleted_session_is_gone(server: RunningServer) -> None:
    async with open_realtime_session(server.url, READER) as client:
        path = f"/v1/admin/sessions/{client.session_id}"
        status, body = await server.request("DELETE", path, headers=OPERATOR)
        assert (status, body["deleted"]) == (200, True)
        assert await client.wait_close_code() == 4003
    async with connect_realtime(f"{server.url}?{client.resume_query}", READER) as again:
        assert (await again.receive())["error"]["code"] == "session_not_found"


async def test_server_without_keys_is_administered_on_loopback_only(
    harness: EngineHarness,
) -> None:
    for host, expected in (("0.0.0.0", 403), ("127.0.0.1", 200)):
        settings = GatewaySettings(host=host, served_model_name=("demo",))
        async with serve_harness(harness, settings) as server:
            status, _ = await server.request("GET", "/v1/admin/sessions", headers={})
            assert status == expected


@pytest.mark.process
@pytest.mark.timeout(120)
async def test_drain_stops_the_gateway_after_its_responses() -> None:
    options = ("--port", "0", "--threads", "1", "--store", "memory", "--no-web")
    with running_process("serve", *options) as process:
        url = await asyncio.to_thread(read_gateway_url, process)
        base = url.replace("ws://", "http://").removesuffix("/v1/realtime")
        async with open_realtime_session(url, {}) as client:
            await client.add_message("Count from one to thirty.")
            response = await client.start_response(max_output_tokens=100, ignore_eos=True)
            await client.wait_deltas(1)
            drain = urllib.request.Request(f"{base}/v1/admin/drain", method="POST")
            with await asyncio.to_thread(urllib.request.urlopen, drain) as reply:
                assert reply.status == 202
            await client.wait_response(response)
            assert client.ended_responses[response]["usage"]["output_tokens"] == 100
            assert await client.wait_close_code() == 1012
        assert await process.wait_exit() == 0

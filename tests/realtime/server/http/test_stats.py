"""Statistics and session list for the web page and the operator, over real sockets."""

import logging
from collections.abc import AsyncIterator

import msgspec
import pytest
from websockets.asyncio.client import connect

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.logging_setup import RECENT_WARNINGS_MAX, RecentWarnings
from tests.realtime.server.test_web_server import RunningServer, serve_harness
from tests.support.engines import EngineHarness

ONE, TWO = ({"Authorization": f"Bearer key-{name}"} for name in ("one", "two"))


@pytest.fixture
async def running(bench: EngineHarness) -> AsyncIterator[RunningServer]:
    settings = GatewaySettings(tenants={"key-one": "one", "key-two": "two"})
    async with serve_harness(bench, settings) as running:
        yield running


async def test_page_counts_of_stats_add_up_and_require_a_key(running: RunningServer) -> None:
    assert (await running.get_json("/v1/stats"))[0] == 401
    assert (await running.get_json("/v1/realtime/sessions"))[0] == 401
    status, stats = await running.get_json("/v1/stats", **ONE)
    assert status == 200
    pages = stats["engine"]
    assert isinstance(pages, dict)
    assert pages["pages_free"] + pages["pages_tree"] + pages["pages_leased"] == 256
    assert stats["page_size"] == 4
    assert stats["sessions"] == 0


async def test_tenant_sees_its_own_sessions_only(running: RunningServer) -> None:
    async with connect(running.url, additional_headers=ONE) as socket:
        created = msgspec.json.decode(await socket.recv())
        _, listed = await running.get_json("/v1/realtime/sessions", **ONE)
        assert isinstance(listed["data"], list)
        assert [one["id"] for one in listed["data"]] == [created["session"]["id"]]
        assert listed["data"][0]["state"] == "idle"
        assert listed["data"][0]["kv"]["place"] == "none"
        _, others = await running.get_json("/v1/realtime/sessions", **TWO)
        assert others["data"] == []
        assert (await running.get_json("/v1/stats", **TWO))[1]["sessions"] == 1


async def test_warnings_are_hidden_with_several_tenants(running: RunningServer) -> None:
    logging.getLogger("realtime").warning("about a tenant")
    assert (await running.get_json("/v1/stats", **ONE))[1]["warnings"] == []


def test_recent_warnings_are_bounded_and_redacted() -> None:
    recent = RecentWarnings(["sk-secret"])
    for n in range(RECENT_WARNINGS_MAX + 5):
        recent.handle(logging.makeLogRecord({"msg": f"{n} sk-secret", "levelname": "WARNING"}))
    assert len(recent.warnings) == RECENT_WARNINGS_MAX
    assert recent.warnings[0].message == f"{RECENT_WARNINGS_MAX + 4} [key]"

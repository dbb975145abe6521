"""Statistics and session list for the web page and the operator, over real sockets."""

import logging

from continuo.realtime.server.logging_setup import RECENT_WARNINGS_MAX, RecentWarnings
from tests.support.clients import open_realtime_session
from tests.support.web_servers import UMBRELLA, RunningServer


async def test_page_counts_of_stats_add_up_and_require_a_key(server: RunningServer) -> None:
    assert (await server.request("GET", "/v1/stats", headers={}))[0] == 401
    assert (await server.request("GET", "/v1/realtime/sessions", headers={}))[0] == 401
    status, stats = await server.request("GET", "/v1/stats")
    assert status == 200
    pages = stats["engine"]
    assert isinstance(pages, dict)
    assert pages["pages_free"] + pages["pages_tree"] + pages["pages_leased"] == 256
    assert stats["page_size"] == 4
    assert stats["sessions"] == 0


async def test_tenant_sees_its_own_sessions_only(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        _, listed = await server.request("GET", "/v1/realtime/sessions")
        assert isinstance(listed["data"], list)
        assert [one["id"] for one in listed["data"]] == [client.session_id]
        assert listed["data"][0]["state"] == "idle"
        assert listed["data"][0]["kv"]["place"] == "none"
        _, others = await server.request("GET", "/v1/realtime/sessions", headers=UMBRELLA)
        assert others["data"] == []
        assert (await server.request("GET", "/v1/stats", headers=UMBRELLA))[1]["sessions"] == 1


async def test_warnings_are_hidden_with_several_tenants(server: RunningServer) -> None:
    logging.getLogger("realtime").warning("about a tenant")
    assert (await server.request("GET", "/v1/stats"))[1]["warnings"] == []


def test_recent_warnings_are_bounded_and_redacted() -> None:
    recent = RecentWarnings(["sk-secret"])
    for n in range(RECENT_WARNINGS_MAX + 5):
        recent.handle(logging.makeLogRecord({"msg": f"{n} sk-secret", "levelname": "WARNING"}))
    assert len(recent.warnings) == RECENT_WARNINGS_MAX
    assert recent.warnings[0].message == f"{RECENT_WARNINGS_MAX + 4} [key]"

"""Memory of recurrent states, as `/v1/stats` and `/metrics` report it."""

from typing import Any

import pytest

from continuo.engine.core.cache.state_pool import ROW_SLOTS
from tests.realtime.server.http.test_metrics import scrape, total
from tests.support.clients import open_realtime_session
from tests.support.web_servers import RunningServer

SLOT_BYTES = 1_000


@pytest.fixture
def engine_options() -> dict[str, Any]:
    """A model with full and recurrent layers, whose device holds the states of a few sessions."""
    return {
        "pages": 512,
        "host_pages": 512,
        "state_slots": ROW_SLOTS + 6,
        "host_state_slots": 8,
        "state_bytes": SLOT_BYTES,
    }


async def read_stats(server: RunningServer) -> dict[str, int]:
    status, stats = await server.request("GET", "/v1/stats")
    assert status == 200
    return {name: value for name, value in stats["engine"].items() if "state_bytes" in name}


async def test_bytes_of_states_follow_what_sessions_hold_and_what_is_spilled(
    server: RunningServer,
) -> None:
    empty = await read_stats(server)
    assert empty == {
        "state_bytes_total": (ROW_SLOTS + 6) * SLOT_BYTES,
        "state_bytes_used": 0,
        "host_state_bytes_total": 8 * SLOT_BYTES,
        "host_state_bytes_used": 0,
        "state_bytes_spilled": 0,
    }
    async with open_realtime_session(server.url) as first:
        await first.complete_response(max_output_tokens=3, ignore_eos=True)
        one = await read_stats(server)
        assert 0 < one["state_bytes_used"] < one["state_bytes_total"]
        assert one["host_state_bytes_used"] == 0
        for _ in range(6):
            async with open_realtime_session(server.url) as other:
                await other.complete_response(max_output_tokens=30, ignore_eos=True)
        many = await read_stats(server)
        assert many["host_state_bytes_used"] > 0
        assert many["state_bytes_spilled"] >= many["host_state_bytes_used"]
        assert many["state_bytes_used"] % SLOT_BYTES == 0
        series = await scrape(server.port)
        shown = {
            "state_bytes_total": total(series, "continuo_state_bytes", place="device"),
            "state_bytes_used": total(series, "continuo_state_bytes_used", place="device"),
            "host_state_bytes_total": total(series, "continuo_state_bytes", place="host"),
            "host_state_bytes_used": total(series, "continuo_state_bytes_used", place="host"),
            "state_bytes_spilled": total(series, "continuo_spilled_state_bytes_total"),
        }
        assert shown == many

"""Timing of the probes of a store."""

import asyncio
import threading

import pytest

from continuo.realtime.store import health_probe
from continuo.realtime.store.health_probe import HealthProbe
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_probe, "PROBE_TIMEOUT_S", 0.2)


async def test_write_that_ends_while_the_event_loop_stands_still_has_not_timed_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A machine without time for this process, or its suspension, has that effect."""
    written, probes = threading.Event(), 0

    async def write() -> None:
        nonlocal probes
        await asyncio.to_thread(written.wait)
        await asyncio.to_thread(lambda: None)  # a call of the store has several steps
        probes += 1

    probe = HealthProbe("The store", write)
    probe.start()
    await asyncio.to_thread(lambda: None)
    written.set()
    threading.Event().wait(0.5)  # the event loop stands still
    await wait_until(lambda: probes > 0)
    await probe.aclose()
    assert caplog.messages == []


async def test_write_that_does_not_end_makes_the_store_unhealthy() -> None:
    never = asyncio.Event()

    async def write() -> None:
        await never.wait()

    probe = HealthProbe("The store", write)
    probe.start()
    await wait_until(lambda: not probe.is_healthy)
    assert probe.cause == "a write has not ended within 0.2 s"
    never.set()
    await wait_until(lambda: probe.is_healthy)
    await probe.aclose()

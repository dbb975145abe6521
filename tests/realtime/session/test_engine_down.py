"""Tests of sessions whose engine is down and is not started again."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.engine.client import connection
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import CancelResponse, FetchItem
from continuo.realtime.protocol.events import TextDelta
from tests.support.engines import EngineHarness
from tests.support.sessions import SessionDriver, create_registry, open_session

SHORT = Limits(command_timeout_s=0.05, close_timeout_s=0.05)


@pytest.fixture
async def driver_without_engine(harness: EngineHarness) -> AsyncIterator[SessionDriver]:
    """A session whose engine, once killed, is not started again before `may_launch` is set."""
    driver = await open_session(harness)
    await driver.add_message("hello")
    harness.launch_allowed.clear()
    yield driver
    harness.launch_allowed.set()


async def test_command_is_refused_with_engine_unavailable(
    driver_without_engine: SessionDriver,
) -> None:
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = SHORT
    with pytest.raises(Refusal, match="try again") as caught:
        await driver_without_engine.add_message("are you there?", name="lost")
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert driver_without_engine.session.conversation.find("lost") is None, (
        "the refused item was added"
    )
    with pytest.raises(Refusal):
        await driver_without_engine.session.status()
    await driver_without_engine.session.execute(FetchItem("u1"))
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = Limits()
    await driver_without_engine.add_message("are you there?", name="found")
    await driver_without_engine.run_turn()
    await driver_without_engine.session.close()
    assert await driver_without_engine.engine.list_sessions() == [], (
        "the engine still holds a session"
    )


async def test_command_that_times_out_costs_no_rate_limit(harness: EngineHarness) -> None:
    driver = await open_session(
        harness, await create_registry(harness, Limits(tokens_per_minute=1000))
    )
    await driver.add_message("hello")
    harness.launch_allowed.clear()
    harness.kill()
    while driver.engine.is_available:
        await asyncio.sleep(0)
    driver.session._limits = SHORT
    with pytest.raises(Refusal, match="try again"):
        await driver.add_message("are you there? " * 10, name="lost")
    (level,) = driver.session._parts.tenant_rate_limits.levels()
    assert level.remaining == 1000
    harness.launch_allowed.set()
    while not driver.engine.is_available:
        await asyncio.sleep(0)
    await driver.session.close()


async def test_close_does_not_wait_for_the_engine(driver_without_engine: SessionDriver) -> None:
    await driver_without_engine.create_response(None)
    await driver_without_engine.recorder.wait_for(TextDelta)
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = SHORT
    await driver_without_engine.session.close()
    assert not driver_without_engine.engine.is_available, "close waited for the engine"
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.is_available:
        await asyncio.sleep(0)
    while await driver_without_engine.engine.list_sessions():
        await asyncio.sleep(0)
    assert (await driver_without_engine.engine.stats()).active_turns == 0


async def test_response_is_refused_while_no_engine_is_available(
    driver_without_engine: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused response is not started; a running one continues on the next engine."""
    monkeypatch.setattr(connection, "UNAVAILABLE_AFTER_S", 0.05)
    await driver_without_engine.create_response(None)
    await driver_without_engine.recorder.wait_for(TextDelta)
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.is_available_soon:
        await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match="try again") as caught:
        await driver_without_engine.create_response(6, is_out_of_band=True)
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert caught.value.retry_after_s
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.is_available:
        await asyncio.sleep(0)
    await driver_without_engine.session.execute(CancelResponse())
    await driver_without_engine.wait_response()
    await driver_without_engine.run_turn()
    await driver_without_engine.session.close()

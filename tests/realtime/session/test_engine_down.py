"""Tests of sessions whose engine is down and is not started again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import Geometry
from continuo.engine.client import connection
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    CancelResponse,
    CommitText,
    DeleteItem,
    FetchItem,
)
from continuo.realtime.protocol.events import TextDelta
from continuo.realtime.registry.access import ForkRequest
from continuo.realtime.session import unit_of_work
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY
from tests.support.engines import EngineHarness, running_engine
from tests.support.hanging_runner import HangingRunner
from tests.support.sessions import (
    EventRecorder,
    SessionDriver,
    create_registry,
    open_session,
    user_message,
)

SHORT = Limits(command_timeout_s=0.05, close_timeout_s=0.05)


@pytest.fixture
async def driver_without_engine(harness: EngineHarness) -> AsyncIterator[SessionDriver]:
    """A session whose engine, once killed, is not started again before `may_launch` is set."""
    driver = await open_session(harness)
    await driver.add_message("hello")
    harness.launch_allowed.clear()
    yield driver
    harness.launch_allowed.set()


async def test_edit_is_accepted_without_an_engine(driver_without_engine: SessionDriver) -> None:
    """The edit does not wait for the engine, which gets the whole conversation when it is back."""
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.fleet.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = SHORT
    await driver_without_engine.add_message("are you there?")
    await driver_without_engine.session.execute(AppendText("hear me "))
    await driver_without_engine.session.execute(CommitText("c1"))
    await driver_without_engine.session.execute(DeleteItem("u1"))
    await driver_without_engine.session.execute(FetchItem("c1"))
    status = await driver_without_engine.session.status()
    assert status.kv.lost_tokens == status.tokens
    assert not driver_without_engine.engine.fleet.is_available, "an edit has waited for the engine"
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.fleet.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = Limits()
    await driver_without_engine.add_message("and now?")
    await driver_without_engine.run_turn()
    await driver_without_engine.session.close()
    assert await driver_without_engine.engine.fleet.list_sessions() == [], (
        "the engine still holds a session"
    )


async def test_first_edit_of_a_session_and_of_its_fork_is_accepted_without_an_engine(
    harness: EngineHarness,
) -> None:
    registry = await create_registry(harness, SHORT)
    original = await registry.open(EventRecorder())
    await original.execute(AddItem(user_message("u1", "hello")))
    harness.launch_allowed.clear()
    harness.kill()
    while harness.engine.fleet.is_available:
        await asyncio.sleep(0)
    fork = ForkRequest(original.id, None)
    sessions = [await registry.open(EventRecorder(), fork=each) for each in (None, fork)]
    for session in sessions:
        await session.execute(AddItem(user_message("u2", "are you there?")))
    harness.launch_allowed.set()
    while not harness.engine.fleet.is_available:
        await asyncio.sleep(0)
    for session in (*sessions, original):
        driver = SessionDriver(session, EventRecorder(), harness)
        session.detach()
        session._event_log.attach(driver.recorder)
        await driver.run_turn()
        await session.close()
    assert await harness.engine.fleet.list_sessions() == []
    await registry.aclose()


@pytest.fixture
async def driver_of_hung_engine(tmp_path: Path) -> AsyncIterator[SessionDriver]:
    """A session whose engine completes no step until `may_compute` is set."""
    geometry = Geometry(64, 4, 200, VOCABULARY, 16, 1, 0)
    runner = HangingRunner(geometry, step_s=0.0)
    async with running_engine(chat_folder(tmp_path), lambda: runner) as harness:
        registry = await create_registry(harness, Limits(tokens_per_minute=1000))
        driver = await open_session(harness, registry)
        runner.may_compute.clear()
        await driver.add_message("hello")
        yield driver
        runner.may_compute.set()


async def test_command_that_times_out_is_refused_and_costs_no_rate_limit(
    driver_of_hung_engine: SessionDriver,
) -> None:
    """Timers of uvloop fire at whole milliseconds: most of these timeouts fire before the deadline
    that they were given."""
    (before,) = driver_of_hung_engine.session._parts.tenant_rate_limits.levels()
    driver_of_hung_engine.session._limits = Limits(command_timeout_s=0.0104)
    for _ in range(20):
        with pytest.raises(Refusal, match="try again") as caught:
            await driver_of_hung_engine.add_message("are you there? " * 10, name="lost")
        assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
        assert driver_of_hung_engine.session.conversation.find("lost") is None, (
            "the refused item was added"
        )
    (level,) = driver_of_hung_engine.session._parts.tenant_rate_limits.levels()
    assert level.remaining >= before.remaining
    driver_of_hung_engine.session._limits = Limits()
    driver_of_hung_engine.engine_harness.runner.may_compute.set()
    await driver_of_hung_engine.run_turn()
    await driver_of_hung_engine.session.close()


async def test_edit_is_accepted_without_a_hung_engine(
    driver_of_hung_engine: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_of_work, "SYNC_TIMEOUT_S", 0.05)
    for _ in range(2):
        await driver_of_hung_engine.add_message("are you there?")
    driver_of_hung_engine.engine_harness.runner.may_compute.set()
    await driver_of_hung_engine.run_turn()
    await driver_of_hung_engine.session.close()


async def test_close_does_not_wait_for_the_engine(driver_without_engine: SessionDriver) -> None:
    await driver_without_engine.create_response(None)
    await driver_without_engine.recorder.wait_for(TextDelta)
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.fleet.is_available:
        await asyncio.sleep(0)
    driver_without_engine.session._limits = SHORT
    await driver_without_engine.session.close()
    assert not driver_without_engine.engine.fleet.is_available, "close waited for the engine"
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.fleet.is_available:
        await asyncio.sleep(0)
    while await driver_without_engine.engine.fleet.list_sessions():
        await asyncio.sleep(0)
    assert (await driver_without_engine.engine.fleet.stats()).active_turns == 0


async def test_response_is_refused_while_no_engine_is_available(
    driver_without_engine: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused response is not started; a running one continues on the next engine."""
    monkeypatch.setattr(connection, "UNAVAILABLE_AFTER_S", 0.05)
    await driver_without_engine.create_response(None)
    await driver_without_engine.recorder.wait_for(TextDelta)
    driver_without_engine.engine_harness.kill()
    while driver_without_engine.engine.fleet.is_available_soon:
        await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match="try again") as caught:
        await driver_without_engine.create_response(6, is_out_of_band=True)
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert caught.value.retry_after_s
    driver_without_engine.engine_harness.launch_allowed.set()
    while not driver_without_engine.engine.fleet.is_available:
        await asyncio.sleep(0)
    await driver_without_engine.session.execute(CancelResponse())
    await driver_without_engine.wait_response()
    await driver_without_engine.run_turn()
    await driver_without_engine.session.close()

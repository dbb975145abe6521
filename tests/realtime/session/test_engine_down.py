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
async def stranded(bench: EngineHarness) -> AsyncIterator[SessionDriver]:
    """A session whose engine, once killed, is not started again before `may_launch` is set."""
    talk = await open_session(bench)
    await talk.add_message("hello")
    bench.launch_allowed.clear()
    yield talk
    bench.launch_allowed.set()


async def test_command_is_refused_with_engine_unavailable(stranded: SessionDriver) -> None:
    stranded.engine_harness.kill()
    while stranded.engine.is_available:
        await asyncio.sleep(0)
    stranded.session._limits = SHORT
    with pytest.raises(Refusal, match="try again") as caught:
        await stranded.add_message("are you there?", name="lost")
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert stranded.session.conversation.find("lost") is None, "the refused item was added"
    with pytest.raises(Refusal):
        await stranded.session.status()
    await stranded.session.execute(FetchItem("u1"))
    stranded.engine_harness.launch_allowed.set()
    while not stranded.engine.is_available:
        await asyncio.sleep(0)
    stranded.session._limits = Limits()
    await stranded.add_message("are you there?", name="found")
    await stranded.run_turn()
    await stranded.session.close()
    assert await stranded.engine.list_sessions() == [], "the engine still holds a session"


async def test_command_that_times_out_costs_no_rate_limit(bench: EngineHarness) -> None:
    talk = await open_session(bench, await create_registry(bench, Limits(tokens_per_minute=1000)))
    await talk.add_message("hello")
    bench.launch_allowed.clear()
    bench.kill()
    while talk.engine.is_available:
        await asyncio.sleep(0)
    talk.session._limits = SHORT
    with pytest.raises(Refusal, match="try again"):
        await talk.add_message("are you there? " * 10, name="lost")
    (level,) = talk.session._tenant_rate_limits.levels()
    assert level.remaining == 1000
    bench.launch_allowed.set()
    while not talk.engine.is_available:
        await asyncio.sleep(0)
    await talk.session.close()


async def test_close_does_not_wait_for_the_engine(stranded: SessionDriver) -> None:
    await stranded.create_response(None)
    await stranded.recorder.wait_for(TextDelta)
    stranded.engine_harness.kill()
    while stranded.engine.is_available:
        await asyncio.sleep(0)
    stranded.session._limits = SHORT
    await stranded.session.close()
    assert not stranded.engine.is_available, "close waited for the engine"
    stranded.engine_harness.launch_allowed.set()
    while not stranded.engine.is_available:
        await asyncio.sleep(0)
    while await stranded.engine.list_sessions():
        await asyncio.sleep(0)
    assert (await stranded.engine.stats()).active_turns == 0


async def test_response_is_refused_while_no_engine_is_available(
    stranded: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused response is not started; a running one continues on the next engine."""
    monkeypatch.setattr(connection, "UNAVAILABLE_AFTER_S", 0.05)
    await stranded.create_response(None)
    await stranded.recorder.wait_for(TextDelta)
    stranded.engine_harness.kill()
    while stranded.engine.is_available_soon:
        await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match="try again") as caught:
        await stranded.create_response(6, is_out_of_band=True)
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert caught.value.retry_after_s
    stranded.engine_harness.launch_allowed.set()
    while not stranded.engine.is_available:
        await asyncio.sleep(0)
    await stranded.session.execute(CancelResponse())
    await stranded.wait_response()
    await stranded.run_turn()
    await stranded.session.close()

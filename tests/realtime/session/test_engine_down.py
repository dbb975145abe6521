"""While the engine is down and does not come back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.engine.client import connection
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import CancelResponse, FetchItem
from continuo.realtime.protocol.events import TextDelta
from tests.support.engines import Bench
from tests.support.sessions import Talk, open_talk

SHORT = Limits(command_timeout_s=0.05, close_timeout_s=0.05)


@pytest.fixture
async def alone(bench: Bench) -> AsyncIterator[Talk]:
    """Somebody whose engine does not come back before it may."""
    talk = await open_talk(bench)
    await talk.say("hello")
    bench.may_launch.clear()
    yield talk
    bench.may_launch.set()


async def test_an_ask_is_told_to_try_again(alone: Talk) -> None:
    alone.bench.kill()
    while alone.engine.is_available:
        await asyncio.sleep(0)
    alone.session._limits = SHORT
    with pytest.raises(Refusal, match="try again") as caught:
        await alone.say("are you there?", name="lost")
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert alone.session.conversation.find("lost") is None, "nothing has changed"
    with pytest.raises(Refusal):
        await alone.session.status()
    await alone.session.execute(FetchItem("u1"))
    alone.bench.may_launch.set()
    while not alone.engine.is_available:
        await asyncio.sleep(0)
    alone.session._limits = Limits()
    await alone.say("are you there?", name="found")
    await alone.turn()
    await alone.session.close()
    assert await alone.engine.list_sessions() == [], "what was begun in vain is gone too"


async def test_what_the_engine_does_not_take_in_time_costs_nothing(bench: Bench) -> None:
    talk = await open_talk(bench, Limits(tokens_per_minute=1000))
    await talk.say("hello")
    bench.may_launch.clear()
    bench.kill()
    while talk.engine.is_available:
        await asyncio.sleep(0)
    talk.session._limits = SHORT
    with pytest.raises(Refusal, match="try again"):
        await talk.say("are you there? " * 10, name="lost")
    (level,) = talk.session._tenant_rate_limits.levels()
    assert level.remaining == 1000
    bench.may_launch.set()
    while not talk.engine.is_available:
        await asyncio.sleep(0)
    await talk.session.close()


async def test_the_end_of_a_session_does_not_wait(alone: Talk) -> None:
    await alone.respond(None)
    await alone.ears.until(TextDelta)
    alone.bench.kill()
    while alone.engine.is_available:
        await asyncio.sleep(0)
    alone.session._limits = SHORT
    await alone.session.close()
    assert not alone.engine.is_available, "it did not wait for it"
    alone.bench.may_launch.set()
    while not alone.engine.is_available:
        await asyncio.sleep(0)
    while await alone.engine.list_sessions():
        await asyncio.sleep(0)
    assert (await alone.engine.stats()).active_turns == 0


async def test_nobody_waits_for_an_engine_that_is_not_there(
    alone: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not answered is not begun either; what had begun goes on when it is back."""
    monkeypatch.setattr(connection, "UNAVAILABLE_AFTER_S", 0.05)
    await alone.respond(None)
    await alone.ears.until(TextDelta)
    alone.bench.kill()
    while alone.engine.is_available_soon:
        await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match="try again") as caught:
        await alone.respond(6, is_out_of_band=True)
    assert (caught.value.code, caught.value.kind) == ("engine_unavailable", "server_error")
    assert caught.value.retry_after_s
    alone.bench.may_launch.set()
    while not alone.engine.is_available:
        await asyncio.sleep(0)
    await alone.session.execute(CancelResponse())
    await alone.ended()
    await alone.turn()
    await alone.session.close()

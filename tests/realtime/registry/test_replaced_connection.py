"""A connection whose session moved to another gateway is closed, even if it sends a command."""

import asyncio

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import ResumeRequest
from tests.realtime.registry.test_takeover import gates_on
from tests.support.engines import Bench
from tests.support.redis_process import RedisProcess
from tests.support.resuming import Client

LOOP_TURNS = range(-10, 10)
"""Rounds of the event loop by which the command precedes the notice of the takeover."""


async def test_superseded_connection_is_closed_whenever_it_sends_a_command(
    redis: RedisProcess, bench: Bench
) -> None:
    async with gates_on(redis.url, bench) as gates:
        for turns in LOOP_TURNS:
            old, new = Client(gates[0]), Client(gates[1])
            old.connect()
            old.say("u1", "hello")
            await old.socket.until("conversation.item.done")
            old.take()
            new.connect(ResumeRequest(old.session_id))
            await new.socket.until("session.updated")
            if turns >= 0:
                old.say("u2", "still there?")
            for _ in range(abs(turns)):
                await asyncio.sleep(0)
            gates[0].on_superseded(old.session_id)
            if turns < 0:
                old.say("u2", "still there?")
            await old.gone()
            assert old.socket.closed is not None
            assert old.socket.closed[0] is CloseCode.SUPERSEDED
            assert new.socket.closed is None
            await new.drop()

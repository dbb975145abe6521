"""A connection whose session moved to another gateway is closed, even if it sends a command."""

import asyncio

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import ResumeRequest
from tests.realtime.registry.test_takeover import registries_on
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient
from tests.support.redis_process import RedisProcess

LOOP_TURNS = range(-10, 10)
"""Rounds of the event loop by which the command precedes the notice of the takeover."""


async def test_superseded_connection_is_closed_whenever_it_sends_a_command(
    redis: RedisProcess, harness: EngineHarness
) -> None:
    async with registries_on(redis.url, harness) as registries:
        for turns in LOOP_TURNS:
            old, new = InProcessClient(registries[0]), InProcessClient(registries[1])
            old.connect()
            old.send_message("hello", "u1")
            await old.socket.wait_for("conversation.item.done")
            old.receive()
            new.connect(ResumeRequest(old.session_id))
            await new.socket.wait_for("session.updated")
            if turns >= 0:
                old.send_message("still there?", "u2")
            for _ in range(abs(turns)):
                await asyncio.sleep(0)
            registries[0].on_superseded(old.session_id)
            if turns < 0:
                old.send_message("still there?", "u2")
            await old.wait_closed()
            assert old.socket.closed is not None
            assert old.socket.closed[0] is CloseCode.SUPERSEDED
            assert new.socket.closed is None
            await new.disconnect()


async def test_superseded_owner_answers_no_read(
    redis: RedisProcess, harness: EngineHarness
) -> None:
    """The copy of that owner may be outdated; no notice of the takeover has reached it yet."""
    async with registries_on(redis.url, harness) as registries:
        old, new = InProcessClient(registries[0]), InProcessClient(registries[1])
        old.connect()
        old.send_message("hello", "u1")
        await old.socket.wait_for("conversation.item.done")
        retrieve = {"type": "conversation.item.retrieve", "item_id": "u1"}
        old.socket.push_event(**retrieve)
        await old.socket.wait_for("conversation.item.retrieved")
        old.receive()
        new.connect(ResumeRequest(old.session_id))
        await new.socket.wait_for("session.updated")
        old.socket.push_event(**retrieve)
        await old.wait_closed()
        kinds = [event["type"] for event in old.socket.sent]
        assert kinds.count("conversation.item.retrieved") == 1
        assert old.socket.closed is not None
        assert old.socket.closed[0] is CloseCode.SUPERSEDED
        new.socket.push_event(**retrieve)
        await new.socket.wait_for("conversation.item.retrieved")
        await new.disconnect()


async def test_owner_answers_reads_while_the_store_is_down(
    redis: RedisProcess, harness: EngineHarness
) -> None:
    async with registries_on(redis.url, harness) as registries:
        client = InProcessClient(registries[0])
        client.connect()
        client.send_message("hello", "u1")
        await client.socket.wait_for("conversation.item.done")
        redis.pause()
        try:
            client.socket.push_event(type="conversation.item.retrieve", item_id="u1")
            await client.socket.wait_for("conversation.item.retrieved")
        finally:
            redis.resume()
        await client.disconnect()

"""Draining of a gateway: connections are closed when their responses have ended."""

import asyncio

from continuo.engine import StaleEngineFence
from continuo.realtime.protocol.events import TextDelta
from tests.support.engines import EngineHarness
from tests.support.sessions import create_registry, open_session


async def test_session_taken_over_while_draining_does_not_block_the_stop(
    harness: EngineHarness,
) -> None:
    """The response of the session then ends here without an end of its own."""
    registry = await create_registry(harness)
    driver = await open_session(harness, registry)
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.recorder.wait_for(TextDelta)
    registry.drain()
    (turn,) = driver.engine._router.turns
    turn.put(StaleEngineFence("another gateway has the session"))
    await registry.close(driver.session)
    await asyncio.wait_for(registry.aclose(), 20)

"""F4: a gateway or an engine is asked to go while several talk, and perhaps asked again."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.faults.caller import Caller
from tests.faults.cluster import TIMES, Town, goes_on, town
from tests.faults.deaths import begun
from tests.faults.deployment import Expected, until
from tests.faults.row import Row
from tests.support.processes import Process, get

AGAIN = "again to stop at once"
TWICE_S = 0.2
"""Between two signals; those that come together are one."""


async def drained(world: Town, chance: Random) -> None:
    trial = engine_drained if chance.random() < 0.4 else gateway_drained
    await trial(world, chance, twice=chance.random() < 0.3)


async def gateway_drained(world: Town, chance: Random, *, twice: bool) -> None:
    """Nobody new comes in; who is being answered is told the end, and then to come back."""
    leaving = chance.randrange(2)
    gateway, url = world.gateways[leaving], world.urls[leaving]
    talks = [await world.talking(leaving) for _ in range(3)]
    (first, _), _, (idle, _) = talks
    answers = [(caller, *await begun(caller, expected)) for caller, expected in talks[:2]]
    await first.deltas(chance.randrange(30))
    gateway.send(signal.SIGTERM)
    await until(lambda: AGAIN in gateway.printed)
    assert await idle.close_code() == 1012
    assert await get(url, "/health/ready") == 503
    with pytest.raises(InvalidStatus) as refused:
        await Caller(url).connect()
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"]
    if twice:
        await again(gateway)
    else:
        for caller, response, text in answers:
            assert await ended(caller, response) == text
            assert await caller.close_code() == 1012
        assert await gateway.ended() == 0
    for caller, response, text in answers:
        assert await caller.end(response) == text
    await world.gateway_again(leaving)
    await finish(world, talks)


async def engine_drained(world: Town, chance: Random, *, twice: bool) -> None:
    """Its turns end, or go on with the other one if it cannot wait; so do its sessions."""
    leaving = chance.randrange(2)
    engine = world.engines[leaving]
    talks = [await world.talking(n % 2) for n in range(4)]
    answers = [(caller, *await begun(caller, expected)) for caller, expected in talks[:3]]
    await answers[0][0].deltas(chance.randrange(30))
    engine.send(signal.SIGTERM)
    await until(lambda: AGAIN in engine.printed)
    if twice:
        await again(engine)
    for caller, response, text in answers:
        assert await caller.end(response) == text
    assert not any(caller.resumed for caller, _ in talks), "no client has noticed"
    if not twice:
        assert await engine.ended() == 0
    assert [await get(url, "/health/ready") for url in world.urls] == [200, 200]
    for caller, expected in talks:
        await caller.say("are you there?")
        expected.say("are you there?")
        assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await world.engine_again(leaving)
    await finish(world, talks)


async def again(process: Process) -> None:
    await asyncio.sleep(TWICE_S)
    process.send(signal.SIGTERM)
    before_s = time.monotonic()
    assert await process.ended() == 1
    assert time.monotonic() - before_s < 2 * TIMES


async def ended(caller: Caller, response: str) -> str:
    """On this connection."""
    while response not in caller.ended:
        try:
            await caller.until("response.done")
        except ConnectionClosed as closed:
            raise AssertionError("closed in the middle of an answer") from closed
    return caller.said[response]


async def finish(world: Town, talks: list[tuple[Caller, Expected]]) -> None:
    await world.ready()
    for caller, expected in talks:
        await goes_on(caller, expected)
    await world.balanced()


@asynccontextmanager
async def two_of_each(folder: Path) -> AsyncIterator[Town]:
    async with town(folder, engines=2, gateways=2) as made:
        yield made


ROWS = (
    Row(
        id="F4",
        fault="SIGTERM to a gateway or an engine while several are answered; perhaps once more",
        passes="nobody new, the answers end, 1012, exit 0; at the second it leaves at once",
        world=two_of_each,
        trial=drained,
        full=50,
        few=2,
    ),
)

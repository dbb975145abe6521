"""F4: SIGTERM to a gateway or an engine during several conversations, in some trials twice."""

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
"""Pause between two signals: signals sent together are delivered as one."""


async def drained(cluster: Town, rng: Random) -> None:
    trial = engine_drained if rng.random() < 0.4 else gateway_drained
    await trial(cluster, rng, twice=rng.random() < 0.3)


async def gateway_drained(cluster: Town, rng: Random, *, twice: bool) -> None:
    """Drain a gateway: new clients are refused; open responses finish, then 1012."""
    draining = rng.randrange(2)
    gateway, url = cluster.gateways[draining], cluster.urls[draining]
    conversations = [await cluster.talking(draining) for _ in range(3)]
    (first, _), _, (idle, _) = conversations
    responses = [(client, *await begun(client, expected)) for client, expected in conversations[:2]]
    await first.deltas(rng.randrange(30))
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
        for client, response, text in responses:
            assert await ended(client, response) == text
            assert await client.close_code() == 1012
        assert await gateway.ended() == 0
    for client, response, text in responses:
        assert await client.end(response) == text
    await cluster.gateway_again(draining)
    await finish(cluster, conversations)


async def engine_drained(cluster: Town, rng: Random, *, twice: bool) -> None:
    """Drain an engine: turns finish, or move to the other engine after a second signal."""
    draining = rng.randrange(2)
    engine = cluster.engines[draining]
    conversations = [await cluster.talking(n % 2) for n in range(4)]
    responses = [(client, *await begun(client, expected)) for client, expected in conversations[:3]]
    await responses[0][0].deltas(rng.randrange(30))
    engine.send(signal.SIGTERM)
    await until(lambda: AGAIN in engine.printed)
    if twice:
        await again(engine)
    for client, response, text in responses:
        assert await client.end(response) == text
    assert not any(client.resumed for client, _ in conversations), "a client lost its connection"
    if not twice:
        assert await engine.ended() == 0
    assert [await get(url, "/health/ready") for url in cluster.urls] == [200, 200]
    for client, expected in conversations:
        await client.say("are you there?")
        expected.say("are you there?")
        assert await client.answer(max_output_tokens=6) == expected.answer(6)
    await cluster.engine_again(draining)
    await finish(cluster, conversations)


async def again(process: Process) -> None:
    await asyncio.sleep(TWICE_S)
    process.send(signal.SIGTERM)
    before_s = time.monotonic()
    assert await process.ended() == 1
    assert time.monotonic() - before_s < 2 * TIMES


async def ended(client: Caller, response: str) -> str:
    """Receive until the response has ended. Raises if the connection closes before."""
    while response not in client.ended:
        try:
            await client.until("response.done")
        except ConnectionClosed as closed:
            raise AssertionError("closed during a response") from closed
    return client.said[response]


async def finish(cluster: Town, conversations: list[tuple[Caller, Expected]]) -> None:
    await cluster.ready()
    for client, expected in conversations:
        await goes_on(client, expected)
    await cluster.balanced()


@asynccontextmanager
async def two_of_each(folder: Path) -> AsyncIterator[Town]:
    async with town(folder, engines=2, gateways=2) as cluster:
        yield cluster


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

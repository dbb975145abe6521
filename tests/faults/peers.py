"""F13 and F14: half-open connections, and connections reset or closed within a frame."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

from continuo.realtime.server.process import web_server
from tests.faults.caller import Caller, item
from tests.faults.deployment import House, house, until
from tests.faults.proxy import Proxy
from tests.faults.row import Row

PING_S = 0.3
"""Ping interval of the gateways under test."""
SLACK = 5
"""Multiple of every time bound that the tests allow, for a busy machine."""


async def half_open(deployment: House, rng: Random) -> None:
    """Discard the bytes of one or both directions, or stall the connection, without a FIN.

    The gateway must detect the loss by its pings and park the session, which is resumed exactly.
    """
    (proxy,) = deployment.proxies
    client, expected = Caller(proxy.url(), deployment.urls[1]), deployment.expected()
    await client.connect()
    await client.say("hello")
    expected.say("hello")
    response = await client.begin(max_output_tokens=60)
    text = expected.answer(60)
    await client.deltas(rng.randrange(8))
    match rng.choice(["both", "both", "up", "down", "stalled"]):
        case "both":
            proxy.lost = {"up", "down"}
        case "up":
            proxy.lost = {"up"}
        case "down":
            proxy.lost = {"down"}
        case _:
            proxy.stall()
    try:
        await until(lambda: len(deployment.gateways[0].registry) == 0, 2 * PING_S * SLACK)
    finally:
        proxy.cut()
        proxy.mend()
    await client.come_back()
    assert client.resumed[-1] == "exact"
    assert await client.end(response) == text
    await client.leave()


async def in_the_middle(deployment: House, rng: Random) -> None:
    """Reset or close the connection within a frame of either direction: the frame is discarded."""
    (proxy,) = deployment.proxies
    proxy.mend()
    client, expected = Caller(proxy.url(), *deployment.urls), deployment.expected()
    await client.connect()
    await client.say("hello")
    expected.say("hello")
    proxy.delay_s = rng.choice([0, 0.01])
    proxy.cut_after("up", rng.randrange(1, 150), fin=rng.random() < 0.5)
    await client.send(type="conversation.item.create", item=item("item_half", "x" * 200))
    assert await client.close_code() == 1006
    await client.come_back()
    assert "item_half" not in client.items, "half a frame was appended"
    await client.say("x" * 200, "item_half")
    expected.say("x" * 200)
    client.turn = 0
    await client.drop()
    await client.connect()
    response = await client.begin(max_output_tokens=60)
    proxy.cut_after("down", rng.randrange(1, 8000), fin=rng.random() < 0.5)
    assert await client.end(response) == expected.answer(60)
    assert set(client.resumed) == {"exact"}
    await client.leave()


@asynccontextmanager
async def behind_a_proxy(folder: Path) -> AsyncIterator[House]:
    with patch.object(web_server, "PING_S", PING_S):
        async with (
            house(folder) as deployment,
            Proxy(deployment.gateways[0].port).running() as proxy,
        ):
            deployment.proxies.append(proxy)
            yield deployment


ROWS = (
    Row(
        id="F13",
        fault="a connection that is half open: bytes vanish, one way or both, or nothing moves",
        passes="found out within two pings; the session is parked and resumed exactly",
        world=behind_a_proxy,
        trial=half_open,
        full=100,
        few=3,
    ),
    Row(
        id="F14",
        fault="RST or FIN within a frame, of the client's or ours, on a slow line or a fast one",
        passes="half an append is none; the answer is resumed exactly",
        world=behind_a_proxy,
        trial=in_the_middle,
        full=100,
        few=5,
    ),
)

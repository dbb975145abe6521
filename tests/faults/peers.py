"""F13 and F14: connections that die without a word, or in the middle of one."""

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
"""Of the gateways here."""
SLACK = 5
"""Times the bound: the machine may be busy with other things."""


async def half_open(world: House, chance: Random) -> None:
    """Both ways swallowed, or one, or nothing moves, and no FIN: found out, parked, resumed
    exactly."""
    (proxy,) = world.proxies
    caller, expected = Caller(proxy.url(), world.urls[1]), world.expected()
    await caller.connect()
    await caller.say("hello")
    expected.say("hello")
    response = await caller.begin(max_output_tokens=60)
    text = expected.answer(60)
    await caller.deltas(chance.randrange(8))
    match chance.choice(["both", "both", "up", "down", "stalled"]):
        case "both":
            proxy.lost = {"up", "down"}
        case "up":
            proxy.lost = {"up"}
        case "down":
            proxy.lost = {"down"}
        case _:
            proxy.stall()
    try:
        await until(lambda: len(world.gateways[0].registry) == 0, 2 * PING_S * SLACK)
    finally:
        proxy.cut()
        proxy.mend()
    await caller.come_back()
    assert caller.resumed[-1] == "exact"
    assert await caller.end(response) == text
    await caller.leave()


async def in_the_middle(world: House, chance: Random) -> None:
    """RST or FIN within a frame, either way: half a message is none."""
    (proxy,) = world.proxies
    proxy.mend()
    caller, expected = Caller(proxy.url(), *world.urls), world.expected()
    await caller.connect()
    await caller.say("hello")
    expected.say("hello")
    proxy.delay_s = chance.choice([0, 0.01])
    proxy.cut_after("up", chance.randrange(1, 150), fin=chance.random() < 0.5)
    await caller.send(type="conversation.item.create", item=item("item_half", "x" * 200))
    assert await caller.close_code() == 1006
    await caller.come_back()
    assert "item_half" not in caller.items, "half a frame is no append"
    await caller.say("x" * 200, "item_half")
    expected.say("x" * 200)
    caller.turn = 0
    await caller.drop()
    await caller.connect()
    response = await caller.begin(max_output_tokens=60)
    proxy.cut_after("down", chance.randrange(1, 8000), fin=chance.random() < 0.5)
    assert await caller.end(response) == expected.answer(60)
    assert set(caller.resumed) == {"exact"}
    await caller.leave()


@asynccontextmanager
async def behind_a_proxy(folder: Path) -> AsyncIterator[House]:
    with patch.object(web_server, "PING_S", PING_S):
        async with house(folder) as world, Proxy(world.gateways[0].port).running() as proxy:
            world.proxies.append(proxy)
            yield world


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

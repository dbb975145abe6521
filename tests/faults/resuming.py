"""F19 and F20: many who want the same session, and those who come back from nowhere."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from websockets.exceptions import ConnectionClosed

from continuo.realtime.limits import Limits
from tests.faults.caller import Caller, Refused, item
from tests.faults.deployment import House, house, until
from tests.faults.row import Row

RACERS = 100
WINDOW_S = 0.5


async def raced(world: House, chance: Random) -> None:
    """All at once, at two gateways; one has it in the end, and the old owner cannot write."""
    caller, expected = world.caller(), world.expected()
    await caller.connect()
    await caller.say("hello")
    expected.say("hello")
    racers = [_like(caller, world.caller(chance.randrange(2))) for _ in range(RACERS)]
    response = None
    if chance.random() < 0.5:
        response = await caller.begin(max_output_tokens=60)
        racers = [_like(caller, racer) for racer in racers]
    await asyncio.gather(*(racer.connect() for racer in racers), return_exceptions=True)
    codes = {racer: asyncio.create_task(racer.close_code()) for racer in [caller, *racers]}
    await until(lambda: sum(not code.done() for code in codes.values()) <= len(world.gateways))
    left = [racer for racer, code in codes.items() if not code.done()]
    listening = [codes.pop(racer) for racer in left]
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    assert {code.result() for code in codes.values()} <= {4001}
    # A gateway that has not looked since it lost the session may still hold a connection.
    owners = [racer for racer in left if await _may_write(racer)]
    assert len(owners) == 1, f"{len(owners)} may write"
    (winner,) = owners
    if response is not None:
        assert await winner.end(response) == expected.answer(60)
    await winner.say("still there?", "item_owner")
    expected.say("still there?")
    assert await winner.answer(max_output_tokens=6) == expected.answer(6)
    await winner.leave()


async def _may_write(racer: Caller) -> bool:
    """Whoever may not is told so, and closed."""
    try:
        await racer.send(type="conversation.item.create", item=item("item_owner", "still there?"))
        while "item_owner" not in racer.items:
            await racer.until("conversation.item.done")
    except (Refused, ConnectionClosed) as error:
        told = error.code if isinstance(error, Refused) else "session_replaced"
        code = await racer.close_code()
        return (told, code) != ("session_replaced", 4001)
    return True


def _like(caller: Caller, racer: Caller) -> Caller:
    """Has seen what it has seen."""
    racer.session, racer.last = caller.session, caller.last
    racer.items, racer.said = caller.items[:], dict(caller.said)
    return racer


async def lost_ways(world: House, chance: Random) -> None:
    """A position of another life, of the future, or that was none; a session that is over."""
    caller, expected = world.caller(chance.randrange(2)), world.expected()
    await caller.connect()
    await caller.say("hello")
    expected.say("hello")
    assert await caller.answer(max_output_tokens=9) == expected.answer(9)
    last = caller.last
    epoch, told = last.split("_")[1], "_".join(last.split("_")[2:])
    strange = {
        "old epoch": f"event_f{epoch}_{told}",
        "future": f"event_{epoch}_999-.1",
        "future answer": f"event_{epoch}_1_999.0.0.0",
    }
    for name in chance.sample(sorted(strange), 3):
        await caller.drop()
        event = await caller.connect(last=strange[name])
        assert event["session"]["resume"]["resumed"] == "snapshot", name
        await caller.settle()
        assert len(caller.items) == 2, "the whole conversation"
    await caller.drop()
    last = caller.last
    event = await caller.connect(last="event_never")
    assert (event["error"]["code"], await caller.close_code()) == ("resume_gap", 1008)
    await caller.connect(last=last)
    last = caller.last
    caller.urls, session = caller.urls[:1], caller.session
    if chance.random() < 0.5:
        await caller.leave()
        codes = {"session_not_found"}
    else:
        await caller.drop()
        gateway = world.gateways
        await until(lambda: not any(session in g.registry._sessions for g in gateway))
        codes = {"session_expired", "session_not_found"}
    event = await caller.connect(last=last)
    assert event["error"]["code"] in codes, event
    assert await caller.close_code() == 1008
    await caller.drop()


@asynccontextmanager
async def short_window(folder: Path) -> AsyncIterator[House]:
    async with house(
        folder, limits=Limits(resume_window_s=WINDOW_S, sweep_interval_s=0.2)
    ) as world:
        yield world


ROWS = (
    Row(
        id="F19",
        fault=f"{RACERS} racers resume one session at two gateways",
        passes="one has it, the others are closed with 4001; the answer goes on",
        world=house,
        trial=raced,
        full=200,
        few=2,
    ),
    Row(
        id="F20",
        fault="resumed at a position of the past, the future, another epoch; after its end",
        passes="a snapshot that says so, or an error and 1008; never a part",
        world=short_window,
        trial=lost_ways,
        full=200,
        few=4,
    ),
)

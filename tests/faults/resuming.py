"""F19 and F20: concurrent resumes of one session, and resumes at invalid positions."""

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


async def raced(deployment: House, rng: Random) -> None:
    """Resume one session RACERS times at once at two gateways: exactly one client may write."""
    client, expected = deployment.caller(), deployment.expected()
    await client.connect()
    await client.say("hello")
    expected.say("hello")
    racers = [_copy_state(client, deployment.caller(rng.randrange(2))) for _ in range(RACERS)]
    response = None
    if rng.random() < 0.5:
        response = await client.begin(max_output_tokens=60)
        racers = [_copy_state(client, racer) for racer in racers]
    await asyncio.gather(*(racer.connect() for racer in racers), return_exceptions=True)
    codes = {racer: asyncio.create_task(racer.close_code()) for racer in [client, *racers]}
    await until(lambda: sum(not code.done() for code in codes.values()) <= len(deployment.gateways))
    remaining = [racer for racer, code in codes.items() if not code.done()]
    receiving = [codes.pop(racer) for racer in remaining]
    for task in receiving:
        task.cancel()
    await asyncio.gather(*receiving, return_exceptions=True)
    assert {code.result() for code in codes.values()} <= {4001}
    # A gateway that has not read the lease since it lost the session may keep a connection open.
    owners = [racer for racer in remaining if await _may_write(racer)]
    assert len(owners) == 1, f"{len(owners)} may write"
    (winner,) = owners
    if response is not None:
        assert await winner.end(response) == expected.answer(60)
    await winner.say("still there?", "item_owner")
    expected.say("still there?")
    assert await winner.answer(max_output_tokens=6) == expected.answer(6)
    await winner.leave()


async def _may_write(racer: Caller) -> bool:
    """Append an item. Returns False if the client is refused as superseded and closed with 4001."""
    try:
        await racer.send(type="conversation.item.create", item=item("item_owner", "still there?"))
        while "item_owner" not in racer.items:
            await racer.until("conversation.item.done")
    except (Refused, ConnectionClosed) as error:
        error_code = error.code if isinstance(error, Refused) else "session_replaced"
        close_code = await racer.close_code()
        return (error_code, close_code) != ("session_replaced", 4001)
    return True


def _copy_state(client: Caller, racer: Caller) -> Caller:
    """Give `racer` the session, the resume cursor and the received events of `caller`."""
    racer.session, racer.last = client.session, client.last
    racer.items, racer.said = client.items[:], dict(client.said)
    return racer


async def lost_ways(deployment: House, rng: Random) -> None:
    """Resume at an event id of another epoch, of the future or of no event; then after the end."""
    client, expected = deployment.caller(rng.randrange(2)), deployment.expected()
    await client.connect()
    await client.say("hello")
    expected.say("hello")
    assert await client.answer(max_output_tokens=9) == expected.answer(9)
    last = client.last
    epoch, position = last.split("_")[1], "_".join(last.split("_")[2:])
    invalid_ids = {
        "old epoch": f"event_f{epoch}_{position}",
        "future": f"event_{epoch}_999-.1",
        "future answer": f"event_{epoch}_1_999.0.0.0",
    }
    for name in rng.sample(sorted(invalid_ids), 3):
        await client.drop()
        event = await client.connect(last=invalid_ids[name])
        assert event["session"]["resume"]["resumed"] == "snapshot", name
        await client.settle()
        assert len(client.items) == 2, "the snapshot is incomplete"
    await client.drop()
    last = client.last
    event = await client.connect(last="event_never")
    assert (event["error"]["code"], await client.close_code()) == ("resume_gap", 1008)
    await client.connect(last=last)
    last = client.last
    client.urls, session = client.urls[:1], client.session
    if rng.random() < 0.5:
        await client.leave()
        codes = {"session_not_found"}
    else:
        await client.drop()
        gateways = deployment.gateways
        await until(lambda: not any(session in g.registry._sessions for g in gateways))
        codes = {"session_expired", "session_not_found"}
    event = await client.connect(last=last)
    assert event["error"]["code"] in codes, event
    assert await client.close_code() == 1008
    await client.drop()


@asynccontextmanager
async def short_window(folder: Path) -> AsyncIterator[House]:
    async with house(
        folder, limits=Limits(resume_window_s=WINDOW_S, sweep_interval_s=0.2)
    ) as deployment:
        yield deployment


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

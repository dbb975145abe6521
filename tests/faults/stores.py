"""F5, F6, F8 and F10: a Redis that stops, dies, forgets or is slow, while somebody talks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from tests.faults.caller import Caller, Refused, item
from tests.faults.house import Expected, House, house
from tests.faults.row import Row

LONG = 300
"""Tokens: longer than the fault."""
SLACK = 5
"""Times the bound: the machine may be busy with other things."""


async def away(world: House, chance: Random) -> None:
    """Stopped or asleep for a while: what runs goes on, what is appended is refused in time."""
    caller, expected = await talking(world, chance.randrange(2))
    response = await caller.begin(max_output_tokens=LONG, ignore_eos=True)
    text = expected.answer(LONG, ignore_eos=True)
    await caller.deltas(chance.randrange(1, 10))
    asleep = chance.random() < 0.5
    if asleep:
        world.redis.pause()
    else:
        world.redis.stop()
    before, began_s = len(caller.said[response]), time.monotonic()
    try:
        assert await refusal(caller, item("item_away", "are you there?")) == "store_unavailable"
        assert time.monotonic() - began_s < 1.0 * SLACK
        while len(caller.said[response]) == before:
            await caller.hear()
        await asyncio.sleep(chance.uniform(0, 1))
    finally:
        if asleep:
            world.redis.go_on()
        else:
            await world.redis.start()
    began_s = time.monotonic()
    await caller.say("are you there?", "item_away")
    assert time.monotonic() - began_s < 2.0 * SLACK
    assert await caller.end(response) == text
    expected.say("are you there?")
    await goes_on(caller, expected)


async def died(worlds: tuple[House, House], chance: Random) -> None:
    """Killed while several append: what was accepted is there, seen from the other gateway."""
    world = chance.choice(worlds)
    talks = [await talking(world, n % 2) for n in range(3)]
    dying = asyncio.create_task(_dies(world, chance.uniform(0, 0.1)))

    async def chatter(caller: Caller, expected: Expected) -> None:
        for n in range(6):
            await caller.say(f"line {n}")
            expected.say(f"line {n}")

    await asyncio.gather(*(chatter(*talk) for talk in talks))
    await dying
    for caller, expected in talks:
        await caller.come_back()
        await goes_on(caller, expected)


async def _dies(world: House, after_s: float) -> None:
    await asyncio.sleep(after_s)
    world.redis.kill()
    await world.redis.start()


async def forgot(world: House, chance: Random) -> None:
    """FLUSHALL: who is there goes on and gives it again; who comes back is told what is so."""
    caller, expected = await talking(world, chance.randrange(2))
    parked, _ = await talking(world, 0)
    await parked.drop()
    response, text = None, ""
    if chance.random() < 0.7:
        response = await caller.begin(max_output_tokens=60)
        text = expected.answer(60)
        await caller.deltas(chance.randrange(1, 10))
    async with world.redis.client() as client:
        await client.flushall()
    if response is not None:
        assert await caller.end(response) == text
    await caller.say("and now?")
    expected.say("and now?")
    assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.come_back()
    assert set(caller.resumed) <= {"exact", "snapshot"}
    await goes_on(caller, expected)
    parked.turn = 1
    event = await parked.connect()
    if event["type"] == "error":
        assert event["error"]["code"] == "session_not_found"
        assert await parked.close_code() == 1008
    await parked.drop()


async def slow(world: House, chance: Random) -> None:
    """It answers nobody for a while: calls end in time, and the event loop runs on."""
    caller, expected = await talking(world, chance.randrange(2))
    pause_s = chance.uniform(0.2, 2.0)
    response = await caller.begin(max_output_tokens=LONG, ignore_eos=True)
    text = expected.answer(LONG, ignore_eos=True)
    longest = asyncio.create_task(_longest_gap(pause_s))
    async with world.redis.client() as client:
        await client.execute_command("CLIENT", "PAUSE", int(pause_s * 1000), "ALL")
    await caller.say("slow?", "item_slow")
    expected.say("slow?")
    assert await caller.end(response) == text
    assert await longest < max(pause_s / 2, 0.05 * SLACK), "nothing waits for Redis on the loop"
    await goes_on(caller, expected)


async def _longest_gap(during_s: float) -> float:
    """Between two turns of the event loop."""
    longest, last_s = 0.0, time.monotonic()
    end_s = last_s + during_s
    while last_s < end_s:
        await asyncio.sleep(0.001)
        now_s = time.monotonic()
        longest, last_s = max(longest, now_s - last_s), now_s
    return longest


async def talking(world: House, first: int) -> tuple[Caller, Expected]:
    caller, expected = world.caller(first), world.expected()
    await caller.connect()
    await caller.say("hello")
    expected.say("hello")
    return caller, expected


async def goes_on(caller: Caller, expected: Expected) -> None:
    """The conversation is what it should be, and ends."""
    await caller.say("go on")
    expected.say("go on")
    assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.leave()


async def refusal(caller: Caller, wanted: dict[str, object]) -> str:
    await caller.send(type="conversation.item.create", item=wanted)
    try:
        await caller.until("conversation.item.added")
    except Refused as error:
        return error.code
    return "taken"


@asynccontextmanager
async def both_durabilities(folder: Path) -> AsyncIterator[tuple[House, House]]:
    always = ("--appendonly", "yes", "--appendfsync", "always")
    async with (
        house(folder / "normal") as normal,
        house(folder / "strict", redis=always, durability="strict") as strict,
    ):
        yield normal, strict


ROWS = (
    Row(
        id="F5",
        fault="Redis stopped, or asleep, during an answer",
        passes="the answer goes on; appends are refused in time, none is lost; it recovers",
        world=house,
        trial=away,
        full=50,
        few=2,
    ),
    Row(
        id="F6",
        fault="Redis killed while three sessions append, everysec and always; started again",
        passes="all that was accepted is there, once, seen from another gateway",
        world=both_durabilities,
        trial=died,
        full=100,
        few=2,
    ),
    Row(
        id="F8",
        fault="FLUSHALL during an answer and between answers",
        passes="who is there goes on; who comes back is told a snapshot, or that it is gone",
        world=house,
        trial=forgot,
        full=20,
        few=3,
    ),
    Row(
        id="F10",
        fault="Redis answers nobody for up to 2 s (CLIENT PAUSE)",
        passes="the event loop is not held up, the answer goes on, nothing is lost",
        world=house,
        trial=slow,
        full=20,
        few=2,
    ),
)

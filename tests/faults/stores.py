"""F5, F6, F8 and F10: a Redis that stops, dies, forgets or is slow, while somebody talks."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

from tests.faults.caller import Caller, Refused, item
from tests.faults.deployment import Expected, House, house
from tests.faults.row import Row

LONG = 300
"""Tokens."""
SLACK = 5
"""Times the bound: the machine may be busy with other things."""
HELD_S_MAX = 0.05 * SLACK
SCHEDULED = Path("/proc/thread-self/schedstat")
AWAY_S, AWAY_WEIGHTS = (5.0, 60.0, 0.5), (12, 1, 12)


@contextmanager
def longer_than(world: House, fault_s: float) -> Iterator[None]:
    """LONG tokens take longer than the fault, for a step takes its time; then none at all."""
    world.bench.runner.step_s = (fault_s + SLACK) / LONG
    try:
        yield
    finally:
        world.bench.runner.step_s = 0


async def away(world: House, chance: Random) -> None:
    """Stopped or asleep for a while: what runs goes on, what is appended is refused in time."""
    (away_s,) = chance.choices(AWAY_S, AWAY_WEIGHTS)
    caller, expected = await talking(world, chance.randrange(2))
    with longer_than(world, away_s):
        response = await caller.begin(max_output_tokens=LONG, ignore_eos=True)
        text = expected.answer(LONG, ignore_eos=True)
        await caller.deltas(chance.randrange(1, 10))
        await _away(world, caller, response, away_s, asleep=chance.random() < 0.5)
        assert response not in caller.ended, "it was made all the while"
    assert await caller.end(response) == text
    expected.say("are you there?")
    await goes_on(caller, expected)


async def _away(
    world: House, caller: Caller, response: str, away_s: float, *, asleep: bool
) -> None:
    if asleep:
        world.redis.pause()
    else:
        world.redis.stop()
    began_s = time.monotonic()
    try:
        assert await refusal(caller, item("item_away", "are you there?")) == "store_unavailable"
        assert time.monotonic() - began_s < 1.0 * SLACK
        await _hears_on(caller, response)
        await asyncio.sleep(began_s + away_s - time.monotonic())
        await _hears_on(caller, response)
    finally:
        if asleep:
            world.redis.go_on()
        else:
            await world.redis.start()
    began_s = time.monotonic()
    await caller.say("are you there?", "item_away")
    assert time.monotonic() - began_s < 2.0 * SLACK


async def _hears_on(caller: Caller, response: str) -> None:
    """What was not made before it listens."""
    await caller.settle()
    before = len(caller.said[response])
    while len(caller.said[response]) == before:
        await caller.hear()


async def died(worlds: tuple[House, House], chance: Random) -> None:
    """Killed while several append: what was accepted is there, seen from the other gateway."""
    world = chance.choice(worlds)
    if world is worlds[0] and chance.random() < 0.5:
        await _loses(world, chance)
        return
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


async def _loses(world: House, chance: Random) -> None:
    """The machine has died with it: the end of its log, and what was confirmed by it, is lost. Who
    comes back to another gateway is told exactly what is left; who stays loses nothing."""
    talks = [await talking(world, n % 2) for n in range(3)]
    written = world.redis.written
    told: list[dict[str, str]] = []
    for caller, _ in talks:
        lines = [f"line {n}" for n in range(chance.randrange(1, 6))]
        told.append({caller.items[0]: "hello"} | {await caller.say(line): line for line in lines})
    assert world.redis.written > written
    world.redis.kill()
    world.redis.lose(chance.randrange(written, world.redis.written))
    await world.redis.start()
    for (caller, _), said in zip(talks, told, strict=True):
        stays = chance.random() < 0.5
        if stays:
            said[await caller.say("still here")] = "still here"
        await caller.come_back()
        assert caller.items == [*said][: len(caller.items)], "from the beginning, without a hole"
        if stays or caller.resumed[-1] == "exact":
            assert caller.items == [*said], "all of it"
        else:
            assert caller.resumed[-1] == "snapshot", "it is told what is left"
        expected = world.expected()
        for name in caller.items:
            expected.say(said[name])
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
    pause_s = chance.uniform(2 * HELD_S_MAX, 2.0)
    with longer_than(world, pause_s):
        response = await caller.begin(max_output_tokens=LONG, ignore_eos=True)
        text = expected.answer(LONG, ignore_eos=True)
        longest = asyncio.create_task(_longest_held(pause_s))
        async with world.redis.client() as client:
            await client.execute_command("CLIENT", "PAUSE", int(pause_s * 1000), "ALL")
        await caller.say("slow?", "item_slow")
        expected.say("slow?")
        assert await longest < HELD_S_MAX, "nothing waits for Redis on the loop"
        assert response not in caller.ended, "it was made all the while"
    assert await caller.end(response) == text
    await goes_on(caller, expected)


async def _longest_held(during_s: float) -> float:
    """Seconds between two turns of the event loop in which nobody else had our processor."""
    longest = 0.0
    began_s = last_s = time.monotonic()
    last_waited_s = _waited_s()
    while last_s < began_s + during_s:
        await asyncio.sleep(0.001)
        now_s, waited_s = time.monotonic(), _waited_s()
        longest = max(longest, now_s - last_s - (waited_s - last_waited_s))
        last_s, last_waited_s = now_s, waited_s
    return longest


def _waited_s() -> float:
    """For a processor, this thread, since it began."""
    return int(SCHEDULED.read_text().split()[1]) / 1e9


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


@asynccontextmanager
async def beside_its_device(folder: Path) -> AsyncIterator[House]:
    async with house(folder, steps_ahead=1) as world:
        yield world


ROWS = (
    Row(
        id="F5",
        fault="Redis stopped, or asleep, for 0.5 to 60 s of an answer that takes longer",
        passes="the answer goes on; appends are refused in time, none is lost; it recovers",
        world=beside_its_device,
        trial=away,
        full=50,
        few=2,
    ),
    Row(
        id="F6",
        fault="Redis killed while three sessions append, everysec and always; with everysec the "
        "end of its log is lost as well, or not; started again",
        passes="all that was accepted is there, once, seen from another gateway; what its log has "
        "lost is given again by its gateway, or a snapshot says what is left, without a hole",
        world=both_durabilities,
        trial=died,
        full=100,
        few=3,
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
        world=beside_its_device,
        trial=slow,
        full=20,
        few=2,
    ),
)

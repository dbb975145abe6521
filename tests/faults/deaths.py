"""F1 to F3: an engine or a gateway dies or stops, while several talk."""

import asyncio
import os
import signal
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.store import open_store
from tests.faults.caller import Caller, Event
from tests.faults.cluster import TIMES, Town, goes_on, town
from tests.faults.deployment import Expected
from tests.faults.row import Row
from tests.support.frames import upgrade
from tests.support.processes import until_ready
from tests.support.web_servers import KEY

LONG = 300
"""Tokens: longer than the fault."""
PROMPT_CHARS = 1500
"""Read in about as many milliseconds as the engine takes for one step of 24."""
STOPS_S = (30.0, 5.0)


def wish(tokens: int) -> dict[str, object]:
    return {"max_output_tokens": tokens, "ignore_eos": True}


async def begun(caller: Caller, expected: Expected, tokens: int = LONG) -> tuple[str, str]:
    """An answer, and what it must be."""
    return await caller.begin(**wish(tokens)), expected.answer(tokens, ignore_eos=True)


# ---------------------------------------------------------------- an engine dies


async def engine_killed(world: Town, chance: Random) -> None:
    """While one is answered, another's long prompt is read, and a third is silent."""
    talks = [await world.talking() for _ in range(3)]
    (decoding, _), (reading, long), (silent, idle) = talks
    for caller, _ in talks:
        include = {"type": "realtime", "include": ["response.interrupted"]}
        await caller.send(type="session.update", session=include)
        await caller.until("session.updated")
    answers = [(decoding, *await begun(*talks[0]))]
    await decoding.deltas(chance.randrange(30))
    said = "".join(chance.choices("abcdefgh ", k=chance.randrange(1, PROMPT_CHARS)))
    await reading.say(said)
    long.say(said)
    answers.append((reading, *await begun(reading, long, 60)))
    await asyncio.sleep(chance.uniform(0, 0.1))
    (child,) = world.engines[0].children()
    os.kill(child, signal.SIGKILL)
    async with asyncio.timeout(2 * TIMES):
        await until_ready(world.urls[0], 503)
        for caller, response, _ in answers:
            await told(caller, response)
    for caller, response, text in answers:
        assert await caller.end(response) == text, "from where it was, nothing twice"
    await until_ready(world.urls[0])
    await silent.say("and me?")
    idle.say("and me?")
    assert await silent.answer(max_output_tokens=20) == idle.answer(20)
    for caller, expected in talks:
        await goes_on(caller, expected)
    await world.balanced()


async def told(caller: Caller, response: str) -> None:
    """How far it is, unless it has ended."""
    event = await caller.until("response.interrupted", "response.done")
    if event["type"] == "response.interrupted":
        assert event["response_id"] == response
        assert event["upto"] == len(caller.said.get(response, ""))


# ---------------------------------------------------------------- an engine stops


async def engine_stopped(world: Town, chance: Random) -> None:
    """One of two: its sessions go on with the other. Both: nobody new is answered, and who was
    being answered is when they are back."""
    stop_s = chance.choice(STOPS_S)
    stopped = chance.sample(world.engines, chance.randrange(1, 3))
    talks = [await world.talking() for _ in range(4)]
    asked, _ = talks[3]
    answers = [(caller, *await begun(caller, expected)) for caller, expected in talks[:3]]
    await answers[0][0].deltas(chance.randrange(20))
    children = [child for engine in stopped for child in engine.children()]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        if len(stopped) == len(world.engines):
            for url in world.urls:
                await until_ready(url, 503, within_s=5 * TIMES)
            error = await refused(asked)
            assert (error["code"], error["type"]) == ("engine_unavailable", "server_error")
        else:
            for caller, response, text in answers:
                assert await caller.end(response) == text
        await asyncio.sleep(began_s + stop_s - time.monotonic())
    finally:
        for child in children:
            os.kill(child, signal.SIGCONT)
    for caller, response, text in answers:
        assert await caller.end(response) == text, "nothing of before is told again"
    await world.ready()
    for caller, expected in talks:
        await goes_on(caller, expected)
    await world.balanced()


async def refused(caller: Caller) -> Event:
    """At once, not when the engine is back."""
    await caller.send(type="response.create", response=wish(6))
    async with asyncio.timeout(2 * TIMES):
        while (event := await caller.hear())["type"] != "error":
            assert event["type"] != "response.created", event
    return event["error"]


# ---------------------------------------------------------------- a gateway dies


async def gateway_killed(world: Town, chance: Random) -> None:
    """In the middle of several answers and appends; it may have been stopped before, and woken when
    others had its sessions already, whose clients had tried to come back to it before."""
    dying = chance.randrange(2)
    talks = [await world.talking(dying) for _ in range(4)]
    answers = [(caller, *await begun(caller, expected)) for caller, expected in talks[:3]]
    await answers[0][0].deltas(chance.randrange(30))
    writing, written = talks[3]
    write = asyncio.create_task(writes(writing, written))
    await asyncio.sleep(chance.uniform(0, 0.05))
    gateway = world.gateways[dying]
    if chance.random() < 0.3:
        gateway.send(signal.SIGSTOP)
        given_up = [await in_vain(world.urls[dying], caller, chance) for caller, _ in talks[:3]]
        for caller, _ in talks[:3]:
            await caller.come_back()
        gateway.send(signal.SIGCONT)
        await asyncio.sleep(chance.uniform(0, 1.0))
        for writer in given_up:
            writer.close()
    gateway.send(signal.SIGKILL)
    for caller, response, text in answers:
        assert await caller.end(response) == text, "nothing missing, nothing twice"
    await write
    store = await open_store(world.redis.url, "normal")
    for caller, expected in talks:
        assert set(caller.resumed) <= {"exact"}
        assert CloseCode.SUPERSEDED not in caller.codes, "it has no other connection"
        card = await store.find(caller.session)
        assert card is not None
        await goes_on(caller, expected)
    await store.aclose()
    await world.gateway_again(dying)
    await world.ready()
    await world.balanced()


async def in_vain(url: str, caller: Caller, chance: Random) -> asyncio.StreamWriter:
    """It asks for its session, and is gone before anybody reads that, or without a word."""
    where = urlsplit(url)
    _, writer = await asyncio.open_connection(where.hostname, where.port)
    path = f"{where.path}?session_id={caller.session}&last_event_id={caller.last}"
    writer.write(upgrade(path, Authorization=f"Bearer {KEY}"))
    await writer.drain()
    if chance.random() < 0.5:
        writer.close()
    return writer


async def writes(caller: Caller, expected: Expected) -> None:
    for n in range(8):
        await caller.say(f"line {n}")
        expected.say(f"line {n}")


def engines(folder: Path) -> AbstractAsyncContextManager[Town]:
    return town(folder, engines=2)


def gateways(folder: Path) -> AbstractAsyncContextManager[Town]:
    return town(folder, gateways=2)


ROWS = (
    Row(
        id="F1",
        fault="kill -9 of the engine while one is answered and another's prompt is read",
        passes="they are told, /ready says so; the answers go on to the same end; no page is lost",
        world=town,
        trial=engine_killed,
        full=200,
        few=3,
    ),
    Row(
        id="F2",
        fault="SIGSTOP of one or both engines for 5 or 30 s, then SIGCONT",
        passes="with none left /ready says so and nobody new is answered; nothing stale is told",
        world=engines,
        trial=engine_stopped,
        full=20,
        few=1,
    ),
    Row(
        id="F3",
        fault="kill -9 of a gateway in the middle of answers and appends, perhaps after SIGSTOP",
        passes="on another one every client has all of it, once; the answers go on",
        world=gateways,
        trial=gateway_killed,
        full=200,
        few=3,
    ),
)

"""F25: the clock on the wall goes wrong by an hour, of a gateway or of Redis.

What these processes are told of it is shifted while they run, by a file. Deadlines are in the time
of Redis, as it stood when they were set; all else goes by a clock that only counts.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import Random
from typing import Protocol

from continuo.realtime.store import Store, open_store
from tests.faults.caller import Caller
from tests.faults.cluster import TIMES, Town
from tests.faults.deaths import begun
from tests.faults.row import Row
from tests.support.redis_process import RedisProcess

HOUR_S = 3600
WINDOW_S = 4.0
SWEEP_S = 1.0
LIBRARIES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/lib/faketime/libfaketime.so.1")
OURS = Path(__file__).with_name("wall_clock.c")


def library() -> str | None:
    found = [file for pattern in LIBRARIES for file in Path("/").glob(pattern)]
    return str(found[0]) if found else None


def lacks() -> str | None:
    if library() is None:
        return "libfaketime"
    return None if shutil.which("cc") else "a C compiler"


class Clock(Protocol):
    """On the wall of the processes with its environment."""

    @property
    def env(self) -> dict[str, str]: ...
    def shift(self, seconds: int) -> None:
        """From the true time."""
        ...


class Faked:
    """By libfaketime."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.shift(0)

    @property
    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": library() or "",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def shift(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._file)


class Ours:
    """By `wall_clock.c`: libfaketime and the jemalloc of Redis wait for each other."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._library = file.with_suffix(".so")
        file.write_bytes(bytes(8))
        command = ("cc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(OURS))
        subprocess.run(command, check=True)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._file)}

    def shift(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


class World:
    """The first gateway and Redis have clocks of their own; the second gateway's is right."""

    def __init__(self, town: Town, clocks: dict[str, Clock], store: Store) -> None:
        self.town = town
        self.clocks = clocks
        self.store = store

    async def told_s(self, whose: str) -> float:
        """What it takes the time for."""
        if whose == "redis":
            async with self.town.redis.client() as client:
                return (await client.time())[0]
        return await asyncio.to_thread(_date, self.town.urls[0])


def _date(url: str) -> float:
    where = url.replace("ws", "http", 1).replace("/v1/realtime", "/health/live")
    with urllib.request.urlopen(where, timeout=60) as answer:
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()


async def wrong(world: World, chance: Random) -> None:
    """An answer goes on, and a session waits for its client for its window: not less, not more."""
    town, whose = world.town, chance.choice(sorted(world.clocks))
    clock, shift_s = world.clocks[whose], chance.choice((-HOUR_S, HOUR_S))
    first = chance.randrange(2)
    talks = [await town.talking(first) for _ in range(3)]
    (caller, _), (back, _), (never, _) = talks
    answers = [(one, *await begun(one, seen)) for one, seen in talks[:2]]
    await caller.deltas(chance.randrange(30))
    clock.shift(shift_s)
    for one, response, text in answers:
        assert await one.end(response) == text
        assert not one.resumed, "nobody lost a connection"
    async with asyncio.timeout(2 * TIMES):
        while abs(await world.told_s(whose) - time.time() - shift_s) > HOUR_S / 2:
            await asyncio.sleep(0.05)
    left_s = time.monotonic()
    await never.drop()
    await back.come_back()
    await back.drop()
    if chance.random() < 0.4:
        await parked(world.store, never, back)
        town.gateways[first].send(signal.SIGKILL)
        never.turn = 1
        await caller.come_back()
    await asyncio.sleep(max(0.0, left_s + WINDOW_S / 2 - time.monotonic()))
    for one in (never, back):
        there = await world.store.find(one.session) is not None
        assert there or time.monotonic() - left_s > WINDOW_S, "too early"
    await back.come_back()
    assert set(back.resumed) == {"exact"}
    async with asyncio.timeout((WINDOW_S + 2 * SWEEP_S) * TIMES):
        while await world.store.find(never.session) is not None:
            await asyncio.sleep(0.05)
    assert time.monotonic() - left_s >= WINDOW_S
    await gone(never)
    for one, seen in talks[:2]:
        await one.say("what time is it?")
        seen.say("what time is it?")
        assert await one.answer(max_output_tokens=6) == seen.answer(6)
        await one.leave()
    clock.shift(0)
    if town.gateways[first].is_gone:
        await town.engine_again(0)  # it keeps what a gateway has left for much longer than this
        await town.gateway_again(first, **(world.clocks["gateway"].env if first == 0 else {}))
        await town.ready()
    await town.balanced()


async def parked(store: Store, *callers: Caller) -> None:
    async with asyncio.timeout(WINDOW_S):
        for caller in callers:
            while (card := await store.find(caller.session)) is None or not card.is_parked:
                await asyncio.sleep(0.01)


async def gone(caller: Caller) -> None:
    event = await caller.connect()
    assert event["error"]["code"] in ("session_not_found", "session_expired")
    assert await caller.close_code() == 1008
    await caller.drop()


@asynccontextmanager
async def clocks(folder: Path) -> AsyncIterator[World]:
    faked: dict[str, Clock] = {
        "gateway": Faked(folder / "gateway"),
        "redis": Ours(folder / "redis"),
    }
    redis = RedisProcess(folder / "store", "--appendonly", "yes", env=faked["redis"].env)
    await redis.start()
    made = Town(folder, redis, "--resume-window-s", f"{WINDOW_S:g}")
    store = await open_store(redis.url, "normal")
    try:
        await made.add_engine()
        await made.add_gateway(**faked["gateway"].env)
        await made.add_gateway()
        await made.ready()
        yield World(made, faked, store)
    finally:
        await store.aclose()
        made.stop()
        redis.kill()


ROWS = (
    Row(
        id="F25",
        fault="the wall clock of a gateway or of Redis jumps an hour, either way, in an answer",
        passes="the answer goes on; a session that waits goes when its window ends, not before",
        world=clocks,
        trial=wrong,
        full=20,
        few=1,
        lacks=lacks,
    ),
)

"""F25: the wall clock of a gateway or of Redis jumps by an hour.

A preloaded library shifts the wall clock of the running process by the seconds in a file. Deadlines
in the store are in the time of Redis; everything else uses a monotonic clock.
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
    files = [file for pattern in LIBRARIES for file in Path("/").glob(pattern)]
    return str(files[0]) if files else None


def lacks() -> str | None:
    if library() is None:
        return "libfaketime"
    return None if shutil.which("cc") else "a C compiler"


class Clock(Protocol):
    """Wall clock of the processes that run with the environment `env`."""

    @property
    def env(self) -> dict[str, str]: ...
    def shift(self, seconds: int) -> None:
        """Set the offset from the true time."""
        ...


class Faked:
    """Clock shifted by libfaketime."""

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
    """Clock shifted by `wall_clock.c`: libfaketime deadlocks with the jemalloc of Redis."""

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
    """Cluster in which the first gateway and Redis each have a clock that can be shifted."""

    def __init__(self, town: Town, clocks: dict[str, Clock], store: Store) -> None:
        self.town = town
        self.clocks = clocks
        self.store = store

    async def told_s(self, process: str) -> float:
        """Read the wall clock of `gateway` (the first one) or of `redis`."""
        if process == "redis":
            async with self.town.redis.client() as admin:
                return (await admin.time())[0]
        return await asyncio.to_thread(_date, self.town.urls[0])


def _date(url: str) -> float:
    health_url = url.replace("ws", "http", 1).replace("/v1/realtime", "/health/live")
    with urllib.request.urlopen(health_url, timeout=60) as response:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()


async def wrong(setup: World, rng: Random) -> None:
    """Shift one clock during a response: responses finish, and resume windows keep their length.

    Of three sessions `connected` stays connected, `returning` resumes within its window, and
    `expiring` does not reconnect: its session must be deleted at the end of the window.
    """
    cluster, process = setup.town, rng.choice(sorted(setup.clocks))
    clock, shift_s = setup.clocks[process], rng.choice((-HOUR_S, HOUR_S))
    first = rng.randrange(2)
    conversations = [await cluster.talking(first) for _ in range(3)]
    (connected, _), (returning, _), (expiring, _) = conversations
    responses = [(client, *await begun(client, expected)) for client, expected in conversations[:2]]
    await connected.deltas(rng.randrange(30))
    clock.shift(shift_s)
    for client, response, text in responses:
        assert await client.end(response) == text
        assert not client.resumed, "a client lost its connection"
    async with asyncio.timeout(2 * TIMES):
        while abs(await setup.told_s(process) - time.time() - shift_s) > HOUR_S / 2:
            await asyncio.sleep(0.05)
    parked_s = time.monotonic()
    await expiring.drop()
    await returning.come_back()
    await returning.drop()
    if rng.random() < 0.4:
        await parked(setup.store, expiring, returning)
        cluster.gateways[first].send(signal.SIGKILL)
        expiring.turn = 1
        await connected.come_back()
    await asyncio.sleep(max(0.0, parked_s + WINDOW_S / 2 - time.monotonic()))
    for client in (expiring, returning):
        is_stored = await setup.store.find(client.session) is not None
        assert is_stored or time.monotonic() - parked_s > WINDOW_S, "expired too early"
    await returning.come_back()
    assert set(returning.resumed) == {"exact"}
    async with asyncio.timeout((WINDOW_S + 2 * SWEEP_S) * TIMES):
        while await setup.store.find(expiring.session) is not None:
            await asyncio.sleep(0.05)
    assert time.monotonic() - parked_s >= WINDOW_S
    await gone(expiring)
    for client, expected in conversations[:2]:
        await client.say("what time is it?")
        expected.say("what time is it?")
        assert await client.answer(max_output_tokens=6) == expected.answer(6)
        await client.leave()
    clock.shift(0)
    if cluster.gateways[first].is_gone:
        await cluster.engine_again(0)  # detached sessions would outlive this test by far
        await cluster.gateway_again(first, **(setup.clocks["gateway"].env if first == 0 else {}))
        await cluster.ready()
    await cluster.balanced()


async def parked(store: Store, *clients: Caller) -> None:
    async with asyncio.timeout(WINDOW_S):
        for client in clients:
            while (metadata := await store.find(client.session)) is None or not metadata.is_parked:
                await asyncio.sleep(0.01)


async def gone(client: Caller) -> None:
    event = await client.connect()
    assert event["error"]["code"] in ("session_not_found", "session_expired")
    assert await client.close_code() == 1008
    await client.drop()


@asynccontextmanager
async def clocks(folder: Path) -> AsyncIterator[World]:
    clocks_by_process: dict[str, Clock] = {
        "gateway": Faked(folder / "gateway"),
        "redis": Ours(folder / "redis"),
    }
    redis = RedisProcess(
        folder / "store", "--appendonly", "yes", env=clocks_by_process["redis"].env
    )
    await redis.start()
    cluster = Town(folder, redis, "--resume-window-s", f"{WINDOW_S:g}")
    store = await open_store(redis.url, "normal")
    try:
        await cluster.add_engine()
        await cluster.add_gateway(**clocks_by_process["gateway"].env)
        await cluster.add_gateway()
        await cluster.ready()
        yield World(cluster, clocks_by_process, store)
    finally:
        await store.aclose()
        cluster.stop()
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

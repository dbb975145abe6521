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

from continuo.realtime.store import Store, open_store
from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR, Cluster
from tests.faults.deaths import start_expected_response
from tests.faults.row import FaultRow
from tests.support.redis_process import RedisProcess

HOUR_S = 3600
RESUME_WINDOW_S = 4.0
SWEEP_INTERVAL_S = 1.0
WALL_CLOCK_SOURCE = Path(__file__).with_name("wall_clock.c")


def missing_requirement() -> str | None:
    return None if shutil.which("cc") else "a C compiler"


class WallClock:
    """Wall clock of the processes that run with the environment `env`, shifted by `wall_clock.c`.

    libfaketime is not used: it deadlocks with the jemalloc of Redis, and where two threads of
    CPython wait for the interpreter lock, their timed waits return at once.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._library = file.with_suffix(".so")
        file.write_bytes(bytes(8))
        command = ("cc", "-O1", "-shared", "-fPIC", "-o", self._library, WALL_CLOCK_SOURCE)
        subprocess.run(command, check=True)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._file)}

    def shift(self, seconds: int) -> None:
        """Set the offset from the true time."""
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


class ClockCluster:
    """Cluster in which the first gateway and Redis each have a clock that can be shifted."""

    def __init__(self, town: Cluster, clocks: dict[str, WallClock], store: Store) -> None:
        self.cluster = town
        self.clocks = clocks
        self.store = store

    async def read_time_s(self, process: str) -> float:
        """Read the wall clock of `gateway` (the first one) or of `redis`."""
        if process == "redis":
            async with self.cluster.redis.client() as admin:
                return (await admin.time())[0]
        return await asyncio.to_thread(_date, self.cluster.urls[0])


def _date(url: str) -> float:
    health_url = url.replace("ws", "http", 1).replace("/v1/realtime", "/health/live")
    with urllib.request.urlopen(health_url, timeout=60) as response:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()


async def shift_wall_clock(setup: ClockCluster, rng: Random) -> None:
    """Shift one clock during a response: responses finish, and resume windows keep their length.

    Of three sessions `connected` stays connected, `returning` resumes within its window, and
    `expiring` does not reconnect: its session must be deleted at the end of the window.
    """
    cluster, process = setup.cluster, rng.choice(sorted(setup.clocks))
    clock, shift_s = setup.clocks[process], rng.choice((-HOUR_S, HOUR_S))
    first = rng.randrange(2)
    conversations = [await cluster.open_conversation(first) for _ in range(3)]
    (connected, _), (returning, _), (expiring, _) = conversations
    responses = [
        (client, *await start_expected_response(client, expected))
        for client, expected in conversations[:2]
    ]
    await connected.wait_deltas(rng.randrange(30))
    clock.shift(shift_s)
    for client, response, text in responses:
        assert await client.wait_response(response) == text
        assert not client.resume_outcomes, "a client lost its connection"
    async with asyncio.timeout(2 * TIMEOUT_FACTOR):
        while abs(await setup.read_time_s(process) - time.time() - shift_s) > HOUR_S / 2:
            await asyncio.sleep(0.05)
    parked_s = time.monotonic()
    await expiring.disconnect()
    await returning.reconnect()
    await returning.disconnect()
    if rng.random() < 0.4:
        await wait_parked(setup.store, expiring, returning)
        cluster.gateways[first].send_signal(signal.SIGKILL)
        expiring.gateway_index = 1
        await connected.reconnect()
    await asyncio.sleep(max(0.0, parked_s + RESUME_WINDOW_S / 2 - time.monotonic()))
    for client in (expiring, returning):
        is_stored = await setup.store.find(client.session_id) is not None
        assert is_stored or time.monotonic() - parked_s > RESUME_WINDOW_S, "expired too early"
    await returning.reconnect()
    assert set(returning.resume_outcomes) == {"exact"}
    async with asyncio.timeout((RESUME_WINDOW_S + 2 * SWEEP_INTERVAL_S) * TIMEOUT_FACTOR):
        while await setup.store.find(expiring.session_id) is not None:
            await asyncio.sleep(0.05)
    assert time.monotonic() - parked_s >= RESUME_WINDOW_S
    await assert_session_expired(expiring)
    for client, expected in conversations[:2]:
        await client.add_message("what time is it?")
        expected.add_user_message("what time is it?")
        assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
        await client.close_session()
    clock.shift(0)
    if cluster.gateways[first].has_exited:
        await cluster.restart_engine(0)  # detached sessions would outlive this test by far
        await cluster.restart_gateway(first, **(setup.clocks["gateway"].env if first == 0 else {}))
        await cluster.wait_ready()
    await cluster.assert_balanced()


async def wait_parked(store: Store, *clients: ReconnectingClient) -> None:
    async with asyncio.timeout(RESUME_WINDOW_S):
        for client in clients:
            while (
                metadata := await store.find(client.session_id)
            ) is None or not metadata.is_parked:
                await asyncio.sleep(0.01)


async def assert_session_expired(client: ReconnectingClient) -> None:
    event = await client.connect()
    assert event["error"]["code"] in ("session_not_found", "session_expired")
    assert await client.wait_close_code() == 1008
    await client.disconnect()


@asynccontextmanager
async def running_cluster_with_clocks(folder: Path) -> AsyncIterator[ClockCluster]:
    clocks_by_process: dict[str, WallClock] = {
        "gateway": WallClock(folder / "gateway"),
        "redis": WallClock(folder / "redis"),
    }
    redis = RedisProcess(
        folder / "store", "--appendonly", "yes", env=clocks_by_process["redis"].env
    )
    await redis.start()
    cluster = Cluster(folder, redis, "--resume-window-s", f"{RESUME_WINDOW_S:g}")
    store = await open_store(redis.url, "normal")
    try:
        await cluster.add_engine()
        await cluster.add_gateway(**clocks_by_process["gateway"].env)
        await cluster.add_gateway()
        await cluster.wait_ready()
        yield ClockCluster(cluster, clocks_by_process, store)
    finally:
        await store.aclose()
        cluster.stop()
        redis.kill()


ROWS = (
    FaultRow(
        id="F25",
        fault="the wall clock of a gateway or of Redis jumps by an hour, either way, during a "
        "response",
        expectation="the response continues; a parked session expires when its window ends, not "
        "before",
        environment=running_cluster_with_clocks,
        trial=shift_wall_clock,
        full_trials=20,
        quick_trials=1,
        missing_requirement=missing_requirement,
    ),
)

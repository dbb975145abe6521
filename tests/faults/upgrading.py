"""F36: gateways and engines are replaced one by one by those of this version."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from continuo.realtime.store import keys
from tests.faults.cluster import Cluster, continue_and_close, running_cluster
from tests.faults.deaths import start_expected_response
from tests.faults.row import FaultRow
from tests.support.processes import ROOT
from tests.support.redis_process import REDIS_SERVER
from tests.support.versions import extract_commit, has_commit

PREVIOUS_VERSION = "50c3ea7ca2"
"""A commit that stores in the present layout; after the first release, that of the last one."""
PAUSE_S_MAX = 1.0
"""Longest pause before the next process is replaced."""


def find_missing_requirement() -> str | None:
    if REDIS_SERVER is None:
        return "redis-server"
    if not has_commit(PREVIOUS_VERSION):
        return f"git, or its history up to {PREVIOUS_VERSION},"
    return None


@asynccontextmanager
async def previous_version(folder: Path) -> AsyncIterator[tuple[Path, Path]]:
    """Yield a folder for trials, and the source of the version before."""
    yield folder, await asyncio.to_thread(extract_commit, PREVIOUS_VERSION, folder / "previous")


async def upgrade_cluster(environment: tuple[Path, Path], rng: Random) -> None:
    """Replace two gateways and two engines, in any order, during responses: no conversation loses
    anything."""
    folder, source = environment
    trial = folder / f"trial-{rng.getrandbits(64):x}"
    async with running_cluster(trial, engines=2, gateways=2, source=source) as cluster:
        cluster.source = ROOT
        conversations = [await cluster.open_conversation(n % 2) for n in range(5)]
        for client, expected in conversations:
            text = expected.compute_response(8)
            assert await client.complete_response(max_output_tokens=8) == text
        assert await read_layouts(cluster) == {str(keys.LAYOUT).encode()}
        parked, _ = conversations[0]
        await parked.disconnect()
        processes = [(kind, n) for kind in ("engine", "gateway") for n in range(2)]
        rng.shuffle(processes)
        for kind, n in processes:
            responding = conversations[1:4]
            responses = [
                (client, *await start_expected_response(client, expected))
                for client, expected in responding
            ]
            await responses[0][0].wait_deltas(rng.randrange(30))
            await replace_process(cluster, kind, n)
            for client, response, text in responses:
                assert await client.wait_response(response) == text
            await asyncio.sleep(rng.uniform(0, PAUSE_S_MAX))
        await cluster.wait_ready()
        for client, _ in conversations:
            await client.reconnect()
        assert await read_layouts(cluster) == {str(keys.LAYOUT).encode()}
        for client, expected in conversations:
            await continue_and_close(client, expected)
        outcomes = {outcome for client, _ in conversations for outcome in client.resume_outcomes}
        assert outcomes == {"exact"}
        await cluster.assert_balanced()


async def read_layouts(cluster: Cluster) -> set[bytes | str | None]:
    """The layouts of all stored sessions."""
    async with cluster.redis.client() as client:
        names = [name async for name in client.scan_iter("continuo:{*}:meta")]
        assert len(names) == 5
        return {await client.hget(name, "layout") for name in names}


async def replace_process(cluster: Cluster, kind: str, n: int) -> None:
    """Drain one process, and start another of this version on the same port."""
    process = (cluster.engines if kind == "engine" else cluster.gateways)[n]
    process.send_signal(signal.SIGTERM)
    assert await process.wait_exit() == 0
    await (cluster.restart_engine(n) if kind == "engine" else cluster.restart_gateway(n))


ROWS = (
    FaultRow(
        id="F36",
        fault="two engines and two gateways of the version before replaced one by one, in any "
        "order, during responses",
        expectation="every response is the expected one, and every resume exact; nothing is lost",
        environment=previous_version,
        trial=upgrade_cluster,
        full_trials=10,
        quick_trials=1,
        missing_requirement=find_missing_requirement,
    ),
)

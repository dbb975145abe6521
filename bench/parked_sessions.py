"""Sessions without a client, waiting in Redis: bytes each, and how late they are removed.

One real conversation is held with the bundled model. What the store has of it is written again and
again, under other ids, and parked for `--ttl` seconds; a sweep runs as a gateway's does. Bytes are
those of Redis's memory over the sessions that are there when all are written; how late a session is
removed counts from its deadline. Choose a time to live longer than the writing takes, so that none
is gone before the memory is read.
"""

import argparse
import asyncio
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from continuo.bench import realtime_client
from continuo.bench.processes import RedisProcess, start_continuo
from continuo.bench.report import Report, median, percentile
from continuo.realtime.limits import Limits
from continuo.realtime.store import (
    NewSession,
    Snapshot,
    Store,
    WriteBatch,
    keys,
    open_store,
    sweep_overdue,
)

WRITERS = 24
STABLE_READINGS = 6
"""Looks at the memory within a KiB of each other, a quarter of a second apart."""
QUESTIONS = (
    "Tell me a short story.",
    "What is 3 plus 4?",
    "Please say that again, a little slower this time.",
    "And what happened to them after that evening?",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=100_000, metavar="N")
    parser.add_argument("--turns", type=int, default=20, help="of the conversation (default 20)")
    parser.add_argument("--ttl", type=float, default=120.0, metavar="SECONDS", help="parked for")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.sessions, options.turns, options.ttl))


async def _run(sessions: int, turns: int, ttl_s: float) -> Report:
    folder = Path(tempfile.mkdtemp())
    redis = RedisProcess(folder)
    try:
        await redis.start()
        real, real_bytes = await _store_conversation(folder, redis, turns)
        store = await open_store(redis.url)
        await _ParkingLoad(store, real, ttl_s).park(
            WRITERS
        )  # connections and scripts are no session's
        parking = _ParkingLoad(store, real, ttl_s)
        before_bytes = await _read_settled_memory(redis)
        began_s = time.monotonic()
        sweeping = asyncio.create_task(parking.sweep(sessions))
        await parking.park(sessions)
        wrote_s = time.monotonic() - began_s
        held = sessions - len(parking.lateness_s)
        each = (await _read_settled_memory(redis) - before_bytes) / max(held, 1)
        async with asyncio.timeout(ttl_s + 120):
            await sweeping
        await store.aclose()
    finally:
        redis.kill()
        shutil.rmtree(folder)
    tokens = sum(len(entry.ids) for entry in real.entries)
    row = {
        "sessions": held,
        "turns": turns,
        "tokens": tokens,
        "bytes_each": round(each),
        "bytes_of_the_real_one": real_bytes,
        "target_bytes": 2048 + 8 * tokens,
        "removed": len(parking.lateness_s),
        "late_p50_s": median(parking.lateness_s),
        "late_p99_s": percentile(parking.lateness_s, 99),
        "late_max_s": max(parking.lateness_s),
        "written_per_s": round(sessions / wrote_s),
    }
    return Report(f"{sessions} parked sessions in Redis", [row])


async def _store_conversation(
    folder: Path, redis: RedisProcess, turns: int
) -> tuple[Snapshot, int]:
    """As the store has it when its client has dropped, and its bytes there."""
    server = start_continuo(folder, "serve", "--port", "0", "--no-web", "--store", redis.url)
    try:
        url = await server.wait_for_output(r"Listening on +(\S+)")
        client = await realtime_client.RealtimeClient.connect(url)
        for turn in range(turns):
            await client.add_message(QUESTIONS[turn % len(QUESTIONS)])
            await client.create_response(max_output_tokens=24)
            await client.receive_until("response.done")
        await client.abort()
        async with redis.client() as asked:
            store = await open_store(redis.url)
            async with asyncio.timeout(10):
                while (
                    not (found := await store.load(client.session_id))
                    or not found.metadata.is_parked
                ):
                    await asyncio.sleep(0.05)
            await store.aclose()
            names = keys.session_keys(client.session_id)
            sizes = [await asked.memory_usage(name, samples=0) or 0 for name in names]
            return found, sum(sizes)
    finally:
        server.stop()


async def _read_settled_memory(redis: RedisProcess) -> int:
    """Bytes of its memory once it has given back what the writing needed."""
    seen: list[int] = []
    async with redis.client() as client:
        while (
            len(seen) < STABLE_READINGS
            or max(seen[-STABLE_READINGS:]) - min(seen[-STABLE_READINGS:]) > 1024
        ):
            await asyncio.sleep(0.25)
            info: Any = await client.info("memory")
            seen.append(info["used_memory"] - info["mem_clients_normal"] - info["mem_aof_buffer"])
    return seen[-1]


class _ParkingLoad:
    def __init__(self, store: Store, template: Snapshot, ttl_s: float) -> None:
        self._store = store
        self._template = template
        self._ttl_s = ttl_s
        self._deadlines: dict[str, float] = {}
        """By session, when its time is over."""
        self.lateness_s: list[float] = []

    async def park(self, count: int) -> None:
        numbers = iter(range(count))

        async def write() -> None:
            for _ in numbers:
                await self._park_one()

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    async def _park_one(self) -> None:
        card, store = self._template.metadata, self._store
        new = NewSession(
            id="sess_" + secrets.token_hex(len(card.id.removeprefix("sess_")) // 2),
            owner=card.owner,
            tenant=card.tenant,
            secret=secrets.token_bytes(len(card.secret)),
            state=self._template.state,
            ttl_s=3600,
        )
        lease = await store.create(new)
        events = msgspec.structs.replace(self._template.events, first_offset=0)
        await store.write(
            lease, WriteBatch(kept_entries=0, entries=self._template.entries, events=events)
        )
        await store.extend_deadline(lease, self._ttl_s, is_parked=True)
        self._deadlines[new.id] = time.monotonic() + self._ttl_s

    async def sweep(self, count: int) -> None:
        """As a gateway does, until so many are gone."""
        while len(self.lateness_s) < count:
            await asyncio.sleep(Limits().sweep_interval_s)
            async for gone in sweep_overdue(self._store):
                now_s = time.monotonic()
                self.lateness_s += [
                    now_s - self._deadlines.pop(name) for name in gone if name in self._deadlines
                ]

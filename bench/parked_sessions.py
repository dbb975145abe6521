"""Parked sessions in Redis: bytes each, and lateness of their removal.

The stored copy of a real conversation with the bundled model is written many times under other ids.
Each copy is parked for `--ttl` seconds, while a sweep runs like that of a gateway. Bytes: growth of
Redis's memory once all copies are written, per session. Lateness: seconds from a session's deadline
until its removal. Choose a TTL longer than the writing takes, so that no session is removed before
the memory is read.
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
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import decode_entry
from continuo.realtime.store import (
    NewSession,
    Snapshot,
    Store,
    StoreUnavailable,
    WriteBatch,
    keys,
    open_store,
    sweep_overdue,
)

WRITERS = 24
REFUSED_S_MAX = 30.0
"""Seconds after which a store that refuses every try ends the benchmark."""
STABLE_READINGS = 6
"""Number of consecutive memory readings, 0.25 s apart, that must lie within 1 KiB of one another
before the memory counts as settled."""
QUESTIONS = (
    "Tell me a short story.",
    "What is 3 plus 4?",
    "Please say that again, a little slower this time.",
    "And what happened to them after that evening?",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sessions",
        type=int,
        default=100_000,
        metavar="N",
        help="parked sessions (default: %(default)s)",
    )
    parser.add_argument(
        "--turns", type=int, default=20, help="turns of the conversation (default: %(default)s)"
    )
    parser.add_argument(
        "--ttl",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="time to live of a parked session (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.sessions, options.turns, options.ttl))


async def _run(sessions: int, turns: int, ttl_s: float) -> Report:
    folder = Path(tempfile.mkdtemp())
    redis = RedisProcess(folder)
    try:
        await redis.start()
        template, template_bytes = await _store_conversation(folder, redis, turns)
        store = await open_store(redis.url)
        # Connections and scripts take memory, too: a warm-up keeps them out of the figure.
        await _ParkingLoad(store, template, ttl_s).park(WRITERS)
        parking = _ParkingLoad(store, template, ttl_s)
        before_bytes = await _read_settled_memory(redis)
        start_s = time.monotonic()
        sweeping = asyncio.create_task(parking.sweep(sessions))
        await parking.park(sessions)
        write_s = time.monotonic() - start_s
        present = sessions - len(parking.lateness_s)
        bytes_each = (await _read_settled_memory(redis) - before_bytes) / max(present, 1)
        async with asyncio.timeout(ttl_s + 120):
            await sweeping
        await store.aclose()
    finally:
        redis.kill()
        shutil.rmtree(folder)
    spans = [entry for entry in map(decode_entry, template.entries) if isinstance(entry, Span)]
    tokens = sum(len(span.ids) for span in spans)
    row = {
        "sessions": present,
        "turns": turns,
        "tokens": tokens,
        "bytes_each": round(bytes_each),
        "bytes_of_the_real_one": template_bytes,
        "target_bytes": 2048 + 8 * tokens + 64 * 2 * turns,
        "removed": len(parking.lateness_s),
        "late_p50_s": median(parking.lateness_s),
        "late_p99_s": percentile(parking.lateness_s, 99),
        "late_max_s": max(parking.lateness_s),
        "written_per_s": round(sessions / write_s),
        "refusals": parking.refusals,
    }
    return Report(f"{sessions} parked sessions in Redis", [row])


async def _store_conversation(
    folder: Path, redis: RedisProcess, turns: int
) -> tuple[Snapshot, int]:
    """Hold a conversation with a real server and disconnect. Returns its copy in the store once it
    is parked, and the size of that copy in bytes."""
    server = start_continuo(folder, "serve", "--port", "0", "--no-web", "--store", redis.url)
    try:
        url = await server.wait_for_output(r"Listening on +(\S+)")
        client = await realtime_client.RealtimeClient.connect(url)
        for turn in range(turns):
            await client.add_message(QUESTIONS[turn % len(QUESTIONS)])
            await client.create_response(max_output_tokens=24)
            await client.receive_until("response.done")
        await client.abort()
        async with redis.client() as redis_client:
            store = await open_store(redis.url)
            async with asyncio.timeout(10):
                while (
                    not (stored := await store.load(client.session_id))
                    or not stored.metadata.is_parked
                ):
                    await asyncio.sleep(0.05)
            await store.aclose()
            names = keys.session_keys(client.session_id)
            sizes = [await redis_client.memory_usage(name, samples=0) or 0 for name in names]
            return stored, sum(sizes)
    finally:
        server.stop()


async def _read_settled_memory(redis: RedisProcess) -> int:
    """Return the bytes of memory that Redis uses, less the buffers of clients and append-only file,
    once the figure is stable."""
    readings: list[int] = []
    async with redis.client() as client:
        while (
            len(readings) < STABLE_READINGS
            or max(readings[-STABLE_READINGS:]) - min(readings[-STABLE_READINGS:]) > 1024
        ):
            await asyncio.sleep(0.25)
            info: Any = await client.info("memory")
            used: int = info["used_memory"]
            readings.append(used - info["mem_clients_normal"] - info["mem_aof_buffer"])
    return readings[-1]


class _ParkingLoad:
    """Parks copies of the stored session `template`, each for `ttl_s` seconds, and sweeps those
    whose deadline has passed."""

    def __init__(self, store: Store, template: Snapshot, ttl_s: float) -> None:
        self._store = store
        self._template = template
        self._ttl_s = ttl_s
        self._deadlines: dict[str, float] = {}
        """Deadline by session id, in seconds of the monotonic clock."""
        self.lateness_s: list[float] = []
        self.refusals = 0

    async def park(self, count: int) -> None:
        numbers = iter(range(count))

        async def write() -> None:
            for _ in numbers:
                await self._park_until_stored()

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    async def _park_until_stored(self) -> None:
        """Park a session. On a busy machine Redis may not answer in time: as a client would, try
        again, with another session, and count the refusal."""
        async with asyncio.timeout(REFUSED_S_MAX):
            while True:
                try:
                    await self._park_one()
                    return
                except StoreUnavailable:
                    self.refusals += 1
                    await asyncio.sleep(0.2)

    async def _park_one(self) -> None:
        metadata, store = self._template.metadata, self._store
        new = NewSession(
            id="sess_" + secrets.token_hex(len(metadata.id.removeprefix("sess_")) // 2),
            owner=metadata.owner,
            tenant=metadata.tenant,
            secret=secrets.token_bytes(len(metadata.secret)),
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
        """Sweep at the interval of a gateway until `count` sessions are removed, and record the
        lateness of each removal."""
        while len(self.lateness_s) < count:
            await asyncio.sleep(Limits().sweep_interval_s)
            async for removed in sweep_overdue(self._store):
                now_s = time.monotonic()
                self.lateness_s += [
                    now_s - self._deadlines.pop(id) for id in removed if id in self._deadlines
                ]

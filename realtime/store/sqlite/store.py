"""The embedded store: one SQLite file, for one gateway on one host.

All of it runs on one thread beside the event loop; calls that wait for it share a transaction. The
clock is the host's.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    Card,
    Change,
    Kept,
    Lease,
    NewSession,
    Once,
    Repeated,
    Snapshot,
    Spoken,
    Swept,
    Written,
)
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreRefused, StoreUnavailable
from continuo.realtime.store.health_probe import Pulse
from continuo.realtime.store.sqlite.file import StoreFile
from continuo.realtime.store.sqlite.tables import Clock, Tables
from continuo.realtime.store.sqlite.worker import Worker

T = TypeVar("T")

ROOM_BYTES = 256 * 1024
"""Room that a store needs which had none, before it counts as healthy again: with room for a row
alone it would refuse the next message, and so on in turns."""


class SqliteStore:
    @classmethod
    async def open(
        cls, file: Path | None, durability: Durability = "normal", clock: Clock = time.time
    ) -> Self:
        """None: in memory. Raises StoreRefused."""
        try:
            opened = await asyncio.to_thread(StoreFile, file, durability)
        except (OSError, sqlite3.Error) as error:
            raise StoreRefused(
                f"the store {file or 'in memory'} cannot be used: {error}"
            ) from error
        store = cls(opened, clock)
        store._pulse.watch()
        return store

    def __init__(self, file: StoreFile, clock: Clock) -> None:
        self._tables = Tables(file.db, clock)
        self._worker = Worker(file, lambda: self._tables.reopened(file.db))
        self._pulse = Pulse("The store", self._probe)

    @property
    def epoch(self) -> str:
        return self._tables.epoch

    @property
    def there(self) -> bool:
        return self._pulse.there

    @property
    def shared(self) -> bool:
        return False

    async def check(self) -> None:
        await self._run(self._tables.verify)

    async def create(self, new: NewSession) -> Lease:
        return await self._run(self._tables.create, new)

    async def find(self, session: str) -> Card | None:
        return await self._run(self._tables.find, session)

    async def load(self, session: str) -> Snapshot | None:
        return await self._run(self._tables.load, session)

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        hold_s: float,
        seen: int | None = None,
        secret: bytes | None = None,
    ) -> Lease:
        return await self._run(self._tables.claim, session, owner, hold_s, seen, secret)

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        return await self._run(self._tables.write, lease, change)

    async def repeated(self, lease: Lease, once: Once) -> bytes | None:
        return await self._run(self._tables.repeated, lease, once)

    async def journal(self, lease: Lease, answer: str, first: int, ids: tuple[int, ...]) -> int:
        return await self._run(self._tables.journal, lease, answer, first, ids)

    async def journal_all(self, spoken: Sequence[Spoken]) -> list[int | None]:
        return await self._run(self._tables.journal_all, spoken)

    async def confirm(self, lease: Lease) -> None:
        await self._run(self._tables.confirm, lease)

    async def hold(self, lease: Lease, for_s: float, *, parked: bool) -> None:
        await self._run(self._tables.hold, lease, for_s, parked)

    async def close(self, lease: Lease) -> None:
        await self._run(self._tables.close, lease)

    async def end(self, session: str) -> int:
        return await self._run(self._tables.end, session)

    async def sweep(self, limit: int) -> Swept:
        return await self._run(self._tables.sweep, min(limit, keys.SWEEP_MAX))

    async def keep(self, kept: Kept, for_s: float) -> None:
        await self._run(self._tables.keep, kept, for_s)

    async def kept(self, response: str) -> Kept | None:
        return await self._run(self._tables.kept, response)

    async def aclose(self) -> None:
        await self._pulse.aclose()
        await self._worker.aclose()

    async def _probe(self) -> None:
        """Write to the disk; after a failure also as much as makes room for what failed."""
        await self._run(self._tables.touch)
        if not self._pulse.there:
            await self._run(self._tables.fill, ROOM_BYTES)
            await self._run(self._tables.unfill)

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        try:
            return await self._worker.run(call, *args)
        except StoreUnavailable as error:
            self._pulse.lost(str(error))
            raise

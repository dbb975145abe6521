"""The embedded store: one SQLite file, for one gateway on one host.

All of it runs on one thread beside the event loop, a call a transaction. The clock is the host's.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from realtime.store import keys
from realtime.store.base import (
    Card,
    Change,
    Kept,
    Lease,
    NewSession,
    Once,
    Repeated,
    Snapshot,
    Written,
)
from realtime.store.durability import Durability
from realtime.store.errors import StoreRefused, StoreUnavailable
from realtime.store.sqlite_file import connect, transaction
from realtime.store.sqlite_tables import Clock, Tables

T = TypeVar("T")


class SqliteStore:
    @classmethod
    async def open(
        cls, file: Path | None, durability: Durability = "normal", clock: Clock = time.time
    ) -> Self:
        """None: in memory. Raises StoreRefused."""
        thread = ThreadPoolExecutor(1, "store")
        loop = asyncio.get_running_loop()
        try:
            db = await loop.run_in_executor(thread, connect, file, durability)
        except (OSError, sqlite3.Error) as error:
            thread.shutdown(wait=False)
            raise StoreRefused(
                f"the store {file or 'in memory'} cannot be used: {error}"
            ) from error
        return await loop.run_in_executor(thread, cls, thread, db, clock)

    def __init__(self, thread: ThreadPoolExecutor, db: sqlite3.Connection, clock: Clock) -> None:
        self._thread = thread
        self._db = db
        self._tables = Tables(db, clock)

    @property
    def epoch(self) -> str:
        return self._tables.epoch

    async def check(self) -> None:
        await self._run(self._tables.verify)

    async def create(self, new: NewSession) -> Lease:
        return await self._run(self._tables.create, new)

    async def find(self, session: str) -> Card | None:
        return await self._run(self._tables.find, session)

    async def load(self, session: str) -> Snapshot | None:
        return await self._run(self._tables.load, session)

    async def claim(
        self, session: str, owner: str, *, hold_s: float, secret: bytes | None = None
    ) -> Lease:
        return await self._run(self._tables.claim, session, owner, hold_s, secret)

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        return await self._run(self._tables.write, lease, change)

    async def repeated(self, lease: Lease, once: Once) -> bytes | None:
        return await self._run(self._tables.repeated, lease, once)

    async def journal(self, lease: Lease, answer: str, first: int, ids: tuple[int, ...]) -> int:
        return await self._run(self._tables.journal, lease, answer, first, ids)

    async def hold(self, lease: Lease, for_s: float, *, parked: bool) -> None:
        await self._run(self._tables.hold, lease, for_s, parked)

    async def close(self, lease: Lease) -> None:
        await self._run(self._tables.close, lease)

    async def sweep(self, limit: int) -> list[str]:
        return await self._run(self._tables.sweep, min(limit, keys.SWEEP_MAX))

    async def keep(self, kept: Kept, for_s: float) -> None:
        await self._run(self._tables.keep, kept, for_s)

    async def kept(self, response: str) -> Kept | None:
        return await self._run(self._tables.kept, response)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._db.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._in_transaction, call, args)

    def _in_transaction(self, call: Callable[..., T], args: tuple[Any, ...]) -> T:
        try:
            with transaction(self._db):
                return call(*args)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the store cannot be written: {error}") from error

"""The embedded store: one SQLite file, for one gateway on one host.

All calls run on one thread, which is not that of the event loop; calls that wait at the same time
share a transaction. The clock is the host's.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnavailable, StoreUnusable
from continuo.realtime.store.health_probe import HealthProbe
from continuo.realtime.store.observed_calls import observe_calls
from continuo.realtime.store.sqlite.file import SqliteFile
from continuo.realtime.store.sqlite.tables import Tables, WallClock
from continuo.realtime.store.sqlite.tenants import SqliteTenants
from continuo.realtime.store.sqlite.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

FREE_BYTES_MIN = 256 * 1024
"""Free space that a full disk must regain before the store counts as healthy again. With space for
one row only, the store would refuse the next message, and alternate between healthy and
unhealthy."""


def _on_worker(
    operation: Callable[Concatenate[Tables, P], T],
) -> "Callable[Concatenate[SqliteStore, P], CoroutineType[Any, Any, T]]":
    """Make the method of the store that runs an operation of its tables on the worker."""

    async def call(self: "SqliteStore", *args: P.args, **options: P.kwargs) -> T:
        bound = update_wrapper(partial(operation, self._tables, *args, **options), operation)  # pyright: ignore[reportPrivateUsage]
        return await self._run(bound)  # pyright: ignore[reportPrivateUsage]

    return call


@observe_calls
class SqliteStore:
    @classmethod
    async def open(
        cls, file: Path | None, durability: Durability = "normal", clock: WallClock = time.time
    ) -> Self:
        """Open `file` (None: in memory). Raises StoreUnusable."""
        try:
            with ThreadPoolExecutor(1, "sqlite open") as thread:
                loop = asyncio.get_running_loop()
                opened = await loop.run_in_executor(thread, SqliteFile, file, durability)
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusable(
                f"the store {file or 'in memory'} cannot be used: {error}"
            ) from error
        store = cls(opened, clock)
        store._health_probe.start()
        return store

    def __init__(self, file: SqliteFile, clock: WallClock) -> None:
        self._tables = Tables(file.db, clock)
        self._worker = Worker(file, lambda: self._tables.reopen(file.db))
        self._health_probe = HealthProbe("The store", self._write_probe)
        self._tenants = SqliteTenants(self._run, self._tables, clock)

    @property
    def epoch(self) -> str:
        return self._tables.epoch

    @property
    def server_id(self) -> str:
        return ""

    @property
    def is_available(self) -> bool:
        return self._health_probe.is_healthy

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def tenants(self) -> SqliteTenants:
        return self._tenants

    check = _on_worker(Tables.verify)
    create = _on_worker(Tables.create)
    find = _on_worker(Tables.find)
    load = _on_worker(Tables.load)
    claim = _on_worker(Tables.claim)
    write = _on_worker(Tables.write)
    recreate = _on_worker(Tables.recreate)
    find_result = _on_worker(Tables.find_result)
    journal = _on_worker(Tables.journal)
    journal_all = _on_worker(Tables.journal_all)
    confirm = _on_worker(Tables.confirm)
    extend_deadline = _on_worker(Tables.extend_deadline)
    delete = _on_worker(Tables.delete)
    force_delete = _on_worker(Tables.force_delete)
    sweep = _on_worker(Tables.sweep)
    put_response = _on_worker(Tables.put_response)
    find_response = _on_worker(Tables.find_response)
    has_response = _on_worker(Tables.has_response)

    async def aclose(self) -> None:
        await self._health_probe.aclose()
        await self._worker.aclose()

    async def _write_probe(self) -> None:
        """Write a page to the disk; after a failure, also check that FREE_BYTES_MIN are free."""
        await self._run(self._tables.write_page)
        if not self._health_probe.is_healthy:
            await self._run(self._tables.reserve_space, FREE_BYTES_MIN)
            await self._run(self._tables.release_space)

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        try:
            return await self._worker.run(call, *args)
        except StoreUnavailable as error:
            self._health_probe.report_failure(str(error))
            raise

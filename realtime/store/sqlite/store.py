"""The embedded store: one SQLite file, for one gateway on one host.

All calls run on one thread, which is not that of the event loop; calls that wait at the same time
share a transaction. The clock is the host's.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    DuplicateWrite,
    IdempotentRequest,
    NewSession,
    SessionLease,
    SessionMetadata,
    Snapshot,
    StoredResponse,
    SweepResult,
    TokenBatch,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnavailable, StoreUnusable
from continuo.realtime.store.health_probe import HealthProbe
from continuo.realtime.store.observed_calls import observe_calls
from continuo.realtime.store.sqlite.file import SqliteFile
from continuo.realtime.store.sqlite.tables import Tables, WallClock
from continuo.realtime.store.sqlite.tenants import SqliteTenants
from continuo.realtime.store.sqlite.worker import Worker

T = TypeVar("T")

FREE_BYTES_MIN = 256 * 1024
"""Free space that a full disk must regain before the store counts as healthy again. With space for
one row only, the store would refuse the next message, and alternate between healthy and
unhealthy."""


@observe_calls
class SqliteStore:
    @classmethod
    async def open(
        cls, file: Path | None, durability: Durability = "normal", clock: WallClock = time.time
    ) -> Self:
        """Open `file` (None: in memory). Raises StoreUnusable."""
        try:
            opened = await asyncio.to_thread(SqliteFile, file, durability)
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
    def is_available(self) -> bool:
        return self._health_probe.is_healthy

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def tenants(self) -> SqliteTenants:
        return self._tenants

    async def check(self) -> None:
        await self._run(self._tables.verify)

    async def create(self, new: NewSession) -> SessionLease:
        return await self._run(self._tables.create, new)

    async def find(self, session: str) -> SessionMetadata | None:
        return await self._run(self._tables.find, session)

    async def load(self, session: str) -> Snapshot | None:
        return await self._run(self._tables.load, session)

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        ttl_s: float,
        expected_fence: int | None = None,
        secret: bytes | None = None,
    ) -> SessionLease:
        return await self._run(self._tables.claim, session, owner, ttl_s, expected_fence, secret)

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        return await self._run(self._tables.write, lease, batch)

    async def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        return await self._run(self._tables.find_result, lease, request)

    async def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        return await self._run(self._tables.journal, lease, response_id, first, ids)

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        return await self._run(self._tables.journal_all, batches)

    async def confirm(self, lease: SessionLease) -> None:
        await self._run(self._tables.confirm, lease)

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        await self._run(self._tables.extend_deadline, lease, ttl_s, is_parked)

    async def delete(self, lease: SessionLease) -> None:
        await self._run(self._tables.delete, lease)

    async def force_delete(self, session: str) -> int:
        return await self._run(self._tables.force_delete, session)

    async def sweep(self, limit: int) -> SweepResult:
        return await self._run(self._tables.sweep, min(limit, keys.SWEEP_MAX))

    async def put_response(self, response: StoredResponse, ttl_s: float) -> None:
        await self._run(self._tables.put_response, response, ttl_s)

    async def find_response(self, response_id: str) -> StoredResponse | None:
        return await self._run(self._tables.find_response, response_id)

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

"""Tenants in the SQLite file."""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from continuo.realtime.store.sqlite.tables import Tables, WallClock
from continuo.realtime.store.tenants import (
    BucketCharge,
    CountsElsewhere,
    TenantCounts,
    TenantHoldings,
    TenantUsage,
)

T = TypeVar("T")

_DELETED = "deleted_ms"
"""Name of the row with the time at which the records of a tenant were deleted."""
_MINUTE_S = 60.0


class Run(Protocol):
    """Runs a call on the thread of the store, in a transaction."""

    def __call__(self, call: Callable[..., T], *args: Any) -> Awaitable[T]: ...


class SqliteTenants:
    def __init__(self, run: Run, tables: Tables, clock: WallClock) -> None:
        self._run = run
        self._tables = tables
        self._clock = clock

    @property
    def _db(self) -> sqlite3.Connection:
        return self._tables.db

    async def charge_buckets(self, charges: Sequence[BucketCharge]) -> list[float]:
        return await self._run(lambda: [self._charge(charge) for charge in charges])

    def _charge(self, charge: BucketCharge) -> float:
        now_s = self._clock()
        level = self._read(charge.tenant, f"{charge.kind}_level", charge.capacity)
        updated_s = self._read(charge.tenant, f"{charge.kind}_s", now_s)
        level += (now_s - updated_s) * charge.capacity / _MINUTE_S
        level = min(level, charge.capacity) - charge.amount
        self._put(charge.tenant, f"{charge.kind}_level", level)
        self._put(charge.tenant, f"{charge.kind}_s", now_s)
        return level

    def _read(self, tenant: str, name: str, default: float) -> float:
        sql = "SELECT amount FROM usage WHERE tenant = ? AND name = ?"
        row = self._db.execute(sql, (tenant, name)).fetchone()
        return default if row is None else row[0]

    def _put(self, tenant: str, name: str, amount: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", (tenant, name, amount))

    async def exchange_counts(
        self, gateway: str, counts: Sequence[TenantCounts], lease_s: float
    ) -> list[CountsElsewhere]:
        """Return nothing elsewhere: a SQLite file has one gateway."""
        del gateway, lease_s
        return [CountsElsewhere() for _ in counts]

    async def add_usage(self, usage: Mapping[str, TenantUsage]) -> None:
        rows = [
            (tenant, name, amount)
            for tenant, used in usage.items()
            for name, amount in msgspec.structs.asdict(used).items()
            if amount
        ]
        sql = (
            "INSERT INTO usage VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
        )
        await self._run(lambda: self._db.executemany(sql, rows) and None)

    async def read_usage(self, tenant: str) -> TenantUsage:
        def read() -> TenantUsage:
            rows = self._db.execute("SELECT name, amount FROM usage WHERE tenant = ?", (tenant,))
            found = {name: int(amount) for name, amount in rows}
            names = TenantUsage.__struct_fields__
            return TenantUsage(**{name: found[name] for name in names if name in found})

        return await self._run(read)

    async def count_sessions(self, tenant: str) -> int:
        return len(await self.list_sessions(tenant))

    async def list_sessions(self, tenant: str) -> list[str]:
        def read() -> list[str]:
            sql = "SELECT id FROM sessions WHERE tenant = ? AND owner <> '' AND deadline_ms > ?"
            rows = self._db.execute(sql, (tenant, int(self._clock() * 1000)))
            return [session for (session,) in rows]

        return await self._run(read)

    async def measure(self, tenant: str) -> TenantHoldings:
        return await self._run(self._measure, tenant)

    def _measure(self, tenant: str) -> TenantHoldings:
        def fetch(sql: str) -> tuple[int, int]:
            count, size = self._db.execute(sql, (tenant,)).fetchone()
            return count, size or 0

        own = "session IN (SELECT id FROM sessions WHERE tenant = ?)"
        sessions, size = fetch(
            "SELECT count(*), sum(length(state)) FROM sessions WHERE tenant = ? AND owner <> ''"
        )
        parts = (
            ("entries", "body"),
            ("events", "body"),
            ("responses", "checkpoint"),
            ("output_ids", "ids"),
        )
        for table, column in parts:
            size += fetch(f"SELECT count(*), sum(length({column})) FROM {table} WHERE {own}")[1]
        responses, responses_size = fetch(
            "SELECT count(*), sum(length(body)) FROM stored_responses WHERE tenant = ?"
        )
        return TenantHoldings(sessions, responses, size + responses_size)

    async def delete_records(self, tenant: str) -> None:
        def delete() -> None:
            self._db.execute("DELETE FROM stored_responses WHERE tenant = ?", (tenant,))
            self._db.execute("DELETE FROM usage WHERE tenant = ?", (tenant,))
            self._put(tenant, _DELETED, int(self._clock() * 1000))

        await self._run(delete)

    async def list_deletions(self, within_s: float) -> dict[str, int]:
        def read() -> dict[str, int]:
            sql = "SELECT tenant, amount FROM usage WHERE name = ? AND amount > ?"
            rows = self._db.execute(sql, (_DELETED, (self._clock() - within_s) * 1000))
            return {tenant: int(at_ms) for tenant, at_ms in rows}

        return await self._run(read)

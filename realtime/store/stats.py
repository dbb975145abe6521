"""Counts of what a store holds, for operators."""

import msgspec


class TenantStats(msgspec.Struct):
    sessions: int = 0
    entries: int = 0
    """Entries of the logs of these sessions."""


class StoreStats(msgspec.Struct, kw_only=True):
    """Sessions past their deadline are not counted, whether they were removed or not."""

    layout: int
    """Newest layout of stored values."""
    epoch: str
    sessions: int = 0
    parked: int = 0
    """Sessions without a connection."""
    entries: int = 0
    running_responses: int = 0
    stored_responses: int = 0
    size_bytes: int = 0
    """Size of the SQLite file with its write-ahead log; for Redis, all memory that it uses."""
    tenants: dict[str, TenantStats] = {}

    def add_session(self, tenant: str, entries: int, *, is_parked: bool) -> None:
        self.sessions += 1
        self.parked += is_parked
        self.entries += entries
        of_tenant = self.tenants.setdefault(tenant, TenantStats())
        of_tenant.sessions += 1
        of_tenant.entries += entries


class VacuumResult(msgspec.Struct, frozen=True):
    expired_sessions: int
    size_before_bytes: int
    size_after_bytes: int

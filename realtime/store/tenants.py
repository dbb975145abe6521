"""The part of a store that is about tenants: common token buckets, usage, and what is held."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, Self

import msgspec


class BucketCharge(NamedTuple):
    """An amount to take from the token bucket that all gateways share."""

    tenant: str
    kind: Literal["requests", "tokens"]
    capacity: int
    """Capacity of the bucket, which is also what refills in a minute."""
    amount: float


class TenantCounts(NamedTuple):
    """Connections and turns of a tenant at one gateway now."""

    tenant: str
    connections: int
    running_turns: int
    waiting_turns: int


class CountsElsewhere(NamedTuple):
    """Connections and turns of a tenant at all gateways but one."""

    connections: int = 0
    running_turns: int = 0
    waiting_turns: int = 0
    gateways: int = 0
    """Gateways with turns that run or wait."""


class TenantUsage(msgspec.Struct, frozen=True):
    """Usage of a tenant since it was first seen, or since the tenant was deleted."""

    requests: int = 0
    refused: int = 0
    computed_tokens: int = 0
    """Prompt tokens that were not in KV."""
    cached_tokens: int = 0
    """Prompt tokens that were in KV."""
    generated_tokens: int = 0

    def __add__(self, other: Self) -> "TenantUsage":
        return TenantUsage(
            *(getattr(self, name) + getattr(other, name) for name in TenantUsage.__struct_fields__)
        )


class TenantHoldings(msgspec.Struct, frozen=True):
    """Amounts that the store holds of a tenant now."""

    sessions: int = 0
    responses: int = 0
    stored_bytes: int = 0


class TenantStore(Protocol):
    """Every call may raise StoreUnavailable and StoreReplaced."""

    async def charge_buckets(self, charges: Sequence[BucketCharge]) -> list[float]:
        """Take the amount of each charge from its bucket. Returns what each bucket holds then,
        which may be negative."""
        ...

    async def exchange_counts(
        self, gateway: str, counts: Sequence[TenantCounts], lease_s: float
    ) -> list[CountsElsewhere]:
        """Publish what tenants have at a gateway. It counts for `lease_s`, so that nothing remains
        of a gateway that was killed. Returns what each tenant has at the others."""
        ...

    async def add_usage(self, usage: Mapping[str, TenantUsage]) -> None:
        """Add to the usage of each tenant, by name."""
        ...

    async def read_usage(self, tenant: str) -> TenantUsage: ...

    async def count_sessions(self, tenant: str) -> int: ...

    async def list_sessions(self, tenant: str) -> list[str]:
        """Ids of the tenant's sessions."""
        ...

    async def measure(self, tenant: str) -> TenantHoldings: ...

    async def delete_records(self, tenant: str) -> None:
        """Delete the stored responses and counters of a tenant, and record the time, for
        `list_deletions`."""
        ...

    async def list_deletions(self, within_s: float) -> dict[str, int]:
        """Return the tenants whose records were deleted within the last `within_s` seconds, with
        the time of that (ms of the store's clock)."""
        ...

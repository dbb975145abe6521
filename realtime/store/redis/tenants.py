"""Tenants in Redis."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.keys import response_key, session_keys, tenant_keys
from continuo.realtime.store.redis.client import RedisClient
from continuo.realtime.store.tenants import (
    BucketCharge,
    CountsElsewhere,
    TenantCounts,
    TenantHoldings,
    TenantUsage,
)

_EXPIRY_MS = int(keys.TENANT_EXPIRY_S * 1000)
_CHUNK = 500
"""Maximum number of sessions or responses that are measured or deleted in one round trip."""
_CHECKED_SESSIONS = 20
"""Maximum number of sessions whose existence is checked when a tenant's sessions are counted."""


class RedisTenants:
    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def charge_buckets(self, charges: Sequence[BucketCharge]) -> list[float]:
        calls = (
            (
                (tenant_keys(charge.tenant).buckets,),
                (charge.kind, charge.capacity, charge.amount, _EXPIRY_MS),
            )
            for charge in charges
        )
        async with self._client.bounded():
            return [float(each) for each in await self._run_batch("charge_bucket", calls)]

    async def exchange_counts(
        self, gateway: str, counts: Sequence[TenantCounts], lease_s: float
    ) -> list[CountsElsewhere]:
        calls = (
            (
                (tenant_keys(each.tenant).counts,),
                (
                    gateway,
                    int(lease_s * 1000),
                    each.connections,
                    each.running_turns,
                    each.waiting_turns,
                ),
            )
            for each in counts
        )
        async with self._client.bounded():
            sums = await self._run_batch("exchange_counts", calls)
        return [CountsElsewhere(*map(int, each)) for each in sums]

    async def add_usage(self, usage: Mapping[str, TenantUsage]) -> None:
        calls = (
            (
                (tenant_keys(tenant).usage,),
                (
                    _EXPIRY_MS,
                    *(
                        part
                        for item in msgspec.structs.asdict(used).items()
                        if item[1]
                        for part in item
                    ),
                ),
            )
            for tenant, used in usage.items()
        )
        async with self._client.bounded():
            await self._run_batch("add_usage", calls)

    async def read_usage(self, tenant: str) -> TenantUsage:
        async with self._client.bounded():
            reply = await self._client.execute("HGETALL", tenant_keys(tenant).usage)
        found = {name.decode(): int(amount) for name, amount in _pairs(reply)}
        return msgspec.convert(found, TenantUsage)

    async def count_sessions(self, tenant: str) -> int:
        return await self._count_sessions(tenant, _CHECKED_SESSIONS)

    async def _count_sessions(self, tenant: str, checked_max: int) -> int:
        names = (tenant_keys(tenant).sessions, keys.DEADLINES_KEY)
        async with self._client.bounded():
            return await self._client.run_script("count_sessions", names, (checked_max,))

    async def list_sessions(self, tenant: str) -> list[str]:
        async with self._client.bounded():
            found = await self._client.execute("SMEMBERS", tenant_keys(tenant).sessions)
        return [session.decode() for session in found]

    async def measure(self, tenant: str) -> TenantHoldings:
        await self._count_sessions(tenant, _CHUNK)
        sessions, responses = await self.list_sessions(tenant), await self._list_responses(tenant)
        session_sizes = await self._measure(map(session_keys, sessions))
        response_sizes = await self._measure((response_key(each),) for each in responses)
        return TenantHoldings(
            len(session_sizes), len(response_sizes), sum(session_sizes) + sum(response_sizes)
        )

    async def delete_records(self, tenant: str) -> None:
        responses = await self._list_responses(tenant)
        for first in range(0, len(responses), _CHUNK):
            names = map(response_key, responses[first : first + _CHUNK])
            async with self._client.bounded():
                await self._client.execute("DEL", *names)
        async with self._client.bounded():
            names = (keys.TENANTS_DELETED_KEY, *tenant_keys(tenant))
            await self._client.run_script("delete_records", names, (tenant, _EXPIRY_MS))

    async def list_deletions(self, within_s: float) -> dict[str, int]:
        async with self._client.bounded():
            found = await self._client.run_script(
                "list_deletions", (keys.TENANTS_DELETED_KEY,), (int(within_s * 1000),)
            )
        pairs = zip(found[::2], found[1::2], strict=True)
        return {tenant.decode(): int(float(at_ms)) for tenant, at_ms in pairs}

    async def index_response(self, tenant: str, response_id: str, for_ms: int) -> None:
        """Index a response that is about to be stored; within a call of the store."""
        args = (response_id, for_ms, _EXPIRY_MS)
        await self._client.run_script("index_response", (tenant_keys(tenant).responses,), args)

    async def _list_responses(self, tenant: str) -> list[str]:
        async with self._client.bounded():
            found = await self._client.execute("ZRANGE", tenant_keys(tenant).responses, 0, -1)
        return [response_id.decode() for response_id in found]

    async def _measure(self, names: Any) -> list[int]:
        """Measure the memory under each group of keys, in bytes, without the groups of which no key
        exists."""
        groups = list(names)
        sizes: list[int | None] = []
        for first in range(0, len(groups), _CHUNK):
            calls = ((group, ()) for group in groups[first : first + _CHUNK])
            async with self._client.bounded():
                sizes += await self._run_batch("measure", calls)
        return [size for size in sizes if size is not None]

    async def _run_batch(self, script: str, calls: Any) -> list[Any]:
        return await self._client.run_script_batch(script, calls)


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash with their values; Redis replies with a map or a flat list."""
    if isinstance(reply, dict):
        return cast(dict[bytes, bytes], reply).items()
    return zip(reply[::2], reply[1::2], strict=True)

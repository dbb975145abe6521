"""Deletion of a tenant from a store."""

import contextlib

from continuo.realtime.store.base import Store
from continuo.realtime.store.errors import SessionNotFound
from continuo.realtime.store.tenants import TenantHoldings


async def delete_tenant(store: Store, tenant: str) -> TenantHoldings:
    """Delete all sessions, stored responses and counters of a tenant. Each session leaves a
    tombstone, which has nothing of the tenant. Returns what was deleted. Raises StoreError; the
    call can then be repeated."""
    holdings = await store.tenants.measure(tenant)
    for session in await store.tenants.list_sessions(tenant):
        with contextlib.suppress(SessionNotFound):
            await store.force_delete(session)
    await store.tenants.delete_records(tenant)
    return holdings

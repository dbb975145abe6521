"""All that is overdue, a bounded number at a time."""

from collections.abc import AsyncGenerator

from continuo.realtime.store import keys
from continuo.realtime.store.base import Store


async def sweep_overdue(store: Store) -> AsyncGenerator[list[str]]:
    """Until no session is left whose time is over: ids of those that are gone, up to SWEEP_MAX,
    after each sweep. Raises StoreError."""
    while True:
        swept = await store.sweep(keys.SWEEP_MAX)
        yield swept.expired
        if swept.examined < keys.SWEEP_MAX:
            return

"""Removal of sessions past their deadline, a bounded number at a time."""

from collections.abc import AsyncGenerator

from continuo.realtime.store import keys
from continuo.realtime.store.base import Store


async def sweep_overdue(store: Store) -> AsyncGenerator[list[str]]:
    """Sweep until no session is past its deadline. Yields the ids of the sessions that each sweep
    removed, SWEEP_MAX at most. Raises StoreError."""
    while True:
        swept = await store.sweep(keys.SWEEP_MAX)
        yield swept.expired
        if swept.examined < keys.SWEEP_MAX:
            return

"""Tenure: the right to write one session in the store, ours as far as we know.

It is taken anew each time a client comes back; what was asked under the fence before is asked
again. A call that was not answered may still arrive, behind others that are made after it, and undo
them: so the next one comes with a new fence, which the late one does not have.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from continuo.realtime.store import (
    OwnershipLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoreUnavailable,
)

T = TypeVar("T")


class Ownership:
    def __init__(self, store: Store, lease: SessionLease, ttl_s: float) -> None:
        self.lease = lease
        self._store = store
        self._ttl_s = ttl_s
        self._has_unconfirmed_call = False
        """Whether a call with this lease may still arrive."""
        self.has_store_lost_fence = False
        """Whether the store has lost a fence that it gave us, and who knows what else."""
        self._is_stopped = False
        self._claim_lock = asyncio.Lock()

    async def run(
        self, call: Callable[[SessionLease], Awaitable[T]], *, harmless_when_late: bool = False
    ) -> T:
        """Raises StoreError; StaleFence only if somebody else has the session."""
        while True:
            lease = self.lease
            if self._has_unconfirmed_call and not harmless_when_late:
                await self._claim_unless_renewed(lease)
                continue
            try:
                return await call(lease)
            except OwnershipLost as error:
                if lease == self.lease and error.owner != lease.owner:
                    raise
                await self._claim_unless_renewed(lease)
            except (StoreUnavailable, asyncio.CancelledError):
                if lease == self.lease and not harmless_when_late:
                    self._has_unconfirmed_call = True
                raise

    async def _claim_unless_renewed(self, lease: SessionLease) -> None:
        """It is another one by now, or there is one of ours that we were not told of."""
        async with self._claim_lock:
            if lease == self.lease:
                await self._claim()

    async def claim(self) -> None:
        """Under a new fence from now on. Raises StoreError; StaleFence if somebody else has the
        session, UnknownSession if nobody has."""
        async with self._claim_lock:
            await self._claim()

    async def _claim(self) -> None:
        lease, seen = self.lease, self.lease.fence
        while True:
            if self._is_stopped:
                raise OwnershipLost(lease.session, "another")
            try:
                lease = await self._store.claim(
                    lease.session, lease.owner, ttl_s=self._ttl_s, expected_fence=seen
                )
                self.replace_lease(lease)
                return
            except OwnershipLost:
                card = await self._store.find(lease.session)
                if card is None:
                    raise SessionNotFound(lease.session) from None
                if card.owner != lease.owner and card.fence >= lease.fence:
                    raise
                seen = card.fence  # our own; or one from before ours, which the store has lost
                self.has_store_lost_fence |= seen < lease.fence

    def replace_lease(self, lease: SessionLease) -> None:
        """A new one, which nothing was asked with."""
        self.lease, self._has_unconfirmed_call = lease, False

    def stop(self) -> None:
        """It is not taken again."""
        self._is_stopped = True

"""LeaseHolder: the lease of one session in the store, which is the right to write it.

A session is claimed again, under a higher fence, each time a client resumes it; calls that were
made under the previous fence are repeated. A call that got no reply may still reach the store,
after later calls, and undo them. Therefore the next call first claims a new fence: the late call
carries the old one and is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from continuo.realtime.store import (
    LeaseLost,
    NewSession,
    SessionExists,
    SessionLease,
    SessionNotFound,
    Store,
    StoreReplaced,
    StoreUnavailable,
    WriteBatch,
)

T = TypeVar("T")


class LeaseHolder:
    """Holds the lease of a session for its writer, and claims the session again when that is
    needed.

    The registry gets the first lease from `Store.create` or `Store.claim`."""

    def __init__(self, store: Store, lease: SessionLease, ttl_s: float) -> None:
        self.lease = lease
        self._store = store
        self._ttl_s = ttl_s
        self._has_unconfirmed_call = False
        """Whether a call under this lease got no reply, and so may still reach the store."""
        self.has_store_lost_fence = False
        """Whether the store has lost a fence that it granted, and so perhaps other data too."""
        self._is_stopped = False
        self._claim_lock = asyncio.Lock()

    @property
    def is_of_other_store(self) -> bool:
        """Whether the lease is of a store that another one, or an empty one, has replaced."""
        return self.lease.store_epoch != self._store.epoch

    async def run(
        self, call: Callable[[SessionLease], Awaitable[T]], *, harmless_when_late: bool = False
    ) -> T:
        """Make a call under the current lease, and repeat it if the lease is replaced meanwhile.

        If a call gets no reply, the next one first claims a new fence, so that the late call is
        refused. `harmless_when_late`: omit that, because the call does no harm even after later
        calls. Raises StoreError; LeaseLost only if another gateway owns
        the session."""
        while True:
            lease = self.lease
            if self._has_unconfirmed_call and not harmless_when_late:
                await self._claim_unless_renewed(lease)
                continue
            try:
                return await call(lease)
            except LeaseLost as error:
                if lease == self.lease and error.owner != lease.owner:
                    raise
                await self._claim_unless_renewed(lease)
            except (StoreUnavailable, asyncio.CancelledError):
                if lease == self.lease and not harmless_when_late:
                    self._has_unconfirmed_call = True
                raise

    async def _claim_unless_renewed(self, lease: SessionLease) -> None:
        """Claim the session, unless `lease` was replaced already. The store may hold a newer lease
        of this gateway, from a claim that got no reply."""
        async with self._claim_lock:
            if lease == self.lease:
                await self._claim()

    async def claim(self) -> None:
        """Claim the session under a new fence. Raises StoreError: LeaseLost if another gateway
        owns the session, SessionNotFound if it is not in the store, StoreReplaced if the lease is
        of another store: what this one has of the session may be older."""
        async with self._claim_lock:
            await self._claim()

    async def _claim(self) -> None:
        lease, expected_fence = self.lease, self.lease.fence
        while True:
            if self._is_stopped:
                raise LeaseLost(lease.session, "another gateway")
            if self.is_of_other_store:
                raise StoreReplaced(f"the lease of session {lease.session} is of another store")
            try:
                lease = await self._store.claim(
                    lease.session, lease.owner, ttl_s=self._ttl_s, expected_fence=expected_fence
                )
                self._replace_lease(lease)
                return
            except LeaseLost:
                found = await self._store.find(lease.session)
                if found is None:
                    raise SessionNotFound(lease.session) from None
                if found.owner != lease.owner and found.fence >= lease.fence:
                    raise
                # The fence of our own claim; or an older one, if the store has lost ours.
                expected_fence = found.fence
                self.has_store_lost_fence |= expected_fence < lease.fence

    async def recreate(self, new: NewSession, batch: WriteBatch) -> None:
        """Write the whole session again, under a new lease, to a store that has lost it. A copy
        that another gateway has written again is replaced if this gateway was the later owner, and
        so is one of an earlier call that got no reply. Raises StoreError; LeaseLost if the session
        in the store is another gateway's."""
        async with self._claim_lock:
            expected_fence = 0
            while True:
                if self._is_stopped:
                    raise LeaseLost(self.lease.session, "another gateway")
                try:
                    lease = await self._store.recreate(
                        self.lease, new, batch, expected_fence=expected_fence
                    )
                except (SessionExists, SessionNotFound):
                    found = await self._store.find(self.lease.session)
                    expected_fence = 0 if found is None else found.fence
                else:
                    self._replace_lease(lease)
                    self.has_store_lost_fence = False
                    return

    def _replace_lease(self, lease: SessionLease) -> None:
        """Replace the lease by a new one, under which no call was made yet."""
        self.lease, self._has_unconfirmed_call = lease, False

    def stop(self) -> None:
        """Refuse later claims."""
        self._is_stopped = True

"""Tenure: the right to write one session in the store, ours as far as we know.

It is taken anew each time a client comes back; what was asked under the fence before is asked
again. A call that was not answered may still arrive, behind others that are made after it, and undo
them: so the next one comes with a new fence, which the late one does not have.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from continuo.realtime.store import Lease, StaleFence, Store, StoreUnavailable, UnknownSession

T = TypeVar("T")


class Tenure:
    def __init__(self, store: Store, lease: Lease, hold_s: float) -> None:
        self.lease = lease
        self._store = store
        self._hold_s = hold_s
        self._doubtful = False
        """Whether a call with this lease may still arrive."""
        self.lost = False
        """Whether the store has lost a fence that it gave us, and who knows what else."""
        self._left = False
        self._taking = asyncio.Lock()

    async def do(
        self, call: Callable[[Lease], Awaitable[T]], *, harmless_when_late: bool = False
    ) -> T:
        """Raises StoreError; StaleFence only if somebody else has the session."""
        while True:
            lease = self.lease
            if self._doubtful and not harmless_when_late:
                await self._renew(lease)
                continue
            try:
                return await call(lease)
            except StaleFence as error:
                if lease == self.lease and error.owner != lease.owner:
                    raise
                await self._renew(lease)
            except (StoreUnavailable, asyncio.CancelledError):
                if lease == self.lease and not harmless_when_late:
                    self._doubtful = True
                raise

    async def _renew(self, lease: Lease) -> None:
        """It is another one by now, or there is one of ours that we were not told of."""
        async with self._taking:
            if lease == self.lease:
                await self._take()

    async def take(self) -> None:
        """Under a new fence from now on. Raises StoreError; StaleFence if somebody else has the
        session, UnknownSession if nobody has."""
        async with self._taking:
            await self._take()

    async def _take(self) -> None:
        lease, seen = self.lease, self.lease.fence
        while True:
            if self._left:
                raise StaleFence(lease.session, "another")
            try:
                lease = await self._store.claim(
                    lease.session, lease.owner, hold_s=self._hold_s, seen=seen
                )
                self.given(lease)
                return
            except StaleFence:
                card = await self._store.find(lease.session)
                if card is None:
                    raise UnknownSession(lease.session) from None
                if card.owner != lease.owner and card.fence >= lease.fence:
                    raise
                seen = card.fence  # our own; or one from before ours, which the store has lost
                self.lost |= seen < lease.fence

    def given(self, lease: Lease) -> None:
        """A new one, which nothing was asked with."""
        self.lease, self._doubtful = lease, False

    def leave(self) -> None:
        """It is not taken again."""
        self._left = True

"""Requests: what a client has asked under ids of its own, and what came of it. Asked again it is
answered again, and not done again."""

import contextlib
from collections.abc import Awaitable, Callable

from continuo.realtime.persistence.session_writer import Ledger
from continuo.realtime.store import Conflict, Once

REQUESTS_MAX = 1024
"""Remembered here; the store remembers about as many."""


class Requests:
    def __init__(self, ledger: Ledger, *, all_here: bool) -> None:
        """`all_here`: nothing was asked of the session elsewhere, or before this process."""
        self._ledger = ledger
        self._all_here = all_here
        self._done: dict[str, Once] = {}
        ledger.done = self._done.values
        self._owed: dict[str, Once] = {}
        """Those that the store has not heard of."""

    async def result(self, once: Once) -> bytes | None:
        """None: it was not asked before. Raises Conflict, StoreError."""
        done = self._done.get(once.key)
        if done is None:
            return None if self._all_here else await self._ledger.repeated(once)
        if done.content != once.content:
            raise Conflict(once.key)
        return done.result

    def done(self, once: Once) -> None:
        self._done[once.key] = once
        if len(self._done) > REQUESTS_MAX:
            del self._done[next(iter(self._done))]
            self._all_here = False

    def owe(self, once: Once) -> None:
        """Done, but not written: `settle` does so before anything else is done."""
        self.done(once)
        self._owed[once.key] = once

    async def settle(self, write: Callable[[Once], Awaitable[None]]) -> None:
        """Raises StoreError."""
        for once in [*self._owed.values()]:
            with contextlib.suppress(Conflict):
                await write(once)
            del self._owed[once.key]

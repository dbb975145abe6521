"""OwnershipChecks: detect sessions of this process that another gateway has taken over or deleted,
and unload them.

Only idle sessions need the periodic check; writing to the store or the engine also reveals a
takeover.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.open_sessions import CloseConnection, OpenSession, OpenSessions
from continuo.realtime.store import (
    LeaseLost,
    SessionDataLost,
    SessionEnded,
    SessionNotFound,
    Store,
    StoreError,
    StoreReplaced,
    sweep_overdue,
)

log = logging.getLogger(__name__)

OWNERSHIP_CHECKS_MAX = 32
"""Sessions whose ownership is checked in one sweep."""
DELETED = "the session was deleted"


class OwnershipChecks:
    def __init__(
        self,
        open_sessions: OpenSessions,
        limits: Limits,
        store: Store,
        resume_window_of: Callable[[str], float],
    ) -> None:
        self._open_sessions = open_sessions
        self._limits = limits
        self._resume_window_of = resume_window_of
        self._store = store
        self._unchecked: list[str] = []
        """Ids of sessions whose ownership is not yet checked in this round of sweeps."""

    async def run(self) -> None:
        """Sweep periodically: remove overdue sessions from the store, and check the ownership of
        our own."""
        while True:
            await asyncio.sleep(self._limits.sweep_interval_s)
            try:
                async for _ in sweep_overdue(self._store):
                    pass
                await self._check_some()
            except StoreError as error:
                log.debug("the sweep failed: %s", error)

    async def _check_some(self) -> None:
        """Check the next `OWNERSHIP_CHECKS_MAX` sessions. Raises StoreError."""
        for session_id in self._unchecked[:OWNERSHIP_CHECKS_MAX]:
            entry = self._open_sessions.get(session_id)
            if entry is not None and await self.check(entry):
                await self._rewrite_lost(entry)
        self._unchecked = self._unchecked[OWNERSHIP_CHECKS_MAX:] or self._open_sessions.ids

    async def _rewrite_lost(self, entry: OpenSession) -> None:
        """Write a session again to a local store that has lost it. The write does not wait for the
        next change of the session, because the process may end before it. Does nothing for a shared
        store: another gateway may hold a newer copy of the session, whose writes would then be
        refused."""
        if self._store.is_shared or not entry.session.stored.needs_full_write:
            return
        try:
            await entry.session.write_again()
            if entry.close_connection is None:
                await entry.session.stored.extend_deadline(
                    self._resume_window_of(entry.owner.tenant), is_parked=True
                )
        except StoreError as error:
            log.debug("session %s is not written again yet: %s", entry.session.id, error)

    async def check(self, entry: OpenSession) -> bool:
        """Return whether this gateway still owns the session. A session that another gateway has
        taken over or deleted is unloaded. Raises StoreUnavailable."""
        try:
            await entry.session.stored.confirm()
        except LeaseLost as error:
            self.unload_lost(entry, error)
            return False
        except (SessionNotFound, StoreReplaced, SessionDataLost):
            pass  # lost in the store; the next change writes it again
        return entry in self._open_sessions

    async def recheck(self, entry: OpenSession) -> None:
        """Check the ownership; do nothing while the store is unavailable."""
        with contextlib.suppress(StoreError):
            await self.check(entry)

    async def unload_replaced(self, entry: OpenSession) -> None:
        """Unload a session that another gateway owns now, or has deleted."""
        await self.recheck(entry)
        if entry in self._open_sessions:
            self.unload_lost(entry, LeaseLost(entry.session.id, "another gateway"))

    def unload_lost(self, entry: OpenSession, error: LeaseLost) -> "asyncio.Task[None]":
        """Close the connection of a session that was taken over or deleted, and unload the session.
        The returned task ends when the session is unloaded."""
        is_deleted = isinstance(error, SessionEnded)
        if is_deleted and entry.close_connection is not None:
            entry.close_connection(CloseCode.CLOSED_BY_OPERATOR, DELETED)
        elif not is_deleted:
            close_replaced(entry.close_connection)
        return self._open_sessions.unload(entry, is_taken_over=not is_deleted)


def close_replaced(close_connection: CloseConnection | None) -> None:
    """Close the previous connection of a session, if there is one, as superseded."""
    if close_connection is not None:
        close_connection(CloseCode.SUPERSEDED, "a newer connection has taken this session over")

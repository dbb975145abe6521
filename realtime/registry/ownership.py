"""OwnershipChecks: detect sessions of this process that another gateway has taken over or deleted,
and unload them.

Only idle sessions need the periodic check; writing to the store or the engine also reveals a
takeover.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.open_sessions import CloseConnection, OpenSession, OpenSessions
from continuo.realtime.store import (
    LeaseLost,
    SessionDataLost,
    SessionEnded,
    SessionNotFound,
    StoreError,
    StoreReplaced,
)

OWNERSHIP_CHECKS_MAX = 32
"""Sessions whose ownership is checked in one sweep."""
CONCURRENT_CHECKS = 8
DELETED = "the session was deleted"


class OwnershipChecks:
    def __init__(self, open_sessions: OpenSessions) -> None:
        self._open_sessions = open_sessions
        self._unchecked: list[str] = []
        """Ids of sessions whose ownership is not yet checked in this round of sweeps."""

    async def check_some(self) -> None:
        """Check the next `OWNERSHIP_CHECKS_MAX` sessions. Raises StoreError."""
        for session_id in self._unchecked[:OWNERSHIP_CHECKS_MAX]:
            entry = self._open_sessions.get(session_id)
            if entry is not None:
                await self.check(entry)
        self._unchecked = self._unchecked[OWNERSHIP_CHECKS_MAX:] or self._open_sessions.ids

    async def check_all(self) -> bool:
        """Check all sessions, several at once. Returns False if the store became unavailable."""
        left = iter(self._open_sessions)
        checks = (self._check_in_turn(left) for _ in range(CONCURRENT_CHECKS))
        return all(await asyncio.gather(*checks))

    async def _check_in_turn(self, left: Iterator[OpenSession]) -> bool:
        for entry in left:
            try:
                if entry in self._open_sessions:
                    await self.check(entry)
            except StoreError:  # which must not leave this task, to which it refers
                return False
        return True

    async def check(self, entry: OpenSession) -> bool:
        """Return whether this gateway still owns the session. A session that another gateway has
        taken over or deleted is unloaded; one that the store lacks in part is in doubt, and
        Recovery writes it again. Raises StoreUnavailable."""
        try:
            await entry.session.stored.confirm()
        except LeaseLost as error:
            self.unload_lost(entry, error)
            return False
        except (SessionNotFound, StoreReplaced, SessionDataLost):
            pass  # lost in the store, and in doubt
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

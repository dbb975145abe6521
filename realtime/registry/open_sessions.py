"""OpenSessions: the sessions of this process by id, connected or parked, with their timers and the
tasks that unload them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Protocol

import msgspec

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import Owner
from continuo.realtime.session.session import Session
from continuo.realtime.store import StoreError

log = logging.getLogger(__name__)

EXPIRED_MAX = 10_000
"""Number of expired sessions that are remembered."""

CloseConnection = Callable[[CloseCode, str], None]
"""Closes the connection of a client with a code and a reason."""


class SessionObserver(Protocol):
    """Receiver of the reports of a session: its registry. Each session has its own, so that the
    registry ignores reports of an unloaded session whose id is open again."""

    def on_replaced(self) -> None:
        """Called when another gateway turns out to own the session."""

    def on_gap(self) -> None:
        """Called when the regenerated output of a response differs from what the client has
        received."""


class Holder(msgspec.Struct, frozen=True):
    """The fence and connection that hold a session at one moment. If either has changed later, the
    session was taken over meanwhile."""

    fence: int
    close_connection: CloseConnection | None
    """Closes the connection; None if the session is parked."""


class OpenSession(msgspec.Struct):
    """A session of this process, connected or parked."""

    session: Session
    owner: Owner
    observer: SessionObserver
    close_connection: CloseConnection | None
    """Closes the connection; None if the session is parked."""
    timers: tuple[asyncio.TimerHandle, ...] = ()
    """Timers of a parked session: to pause its generation, and to expire it."""
    unloading: "asyncio.Task[None] | None" = None
    created_s: float = msgspec.field(default_factory=time.time)
    """Unix time at which the session was opened, here or on another gateway."""

    @property
    def holder(self) -> Holder:
        return Holder(self.session.stored.lease.fence, self.close_connection)

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers = ()


class OpenSessions:
    """The open sessions, by id and by tenant; those that were parked, and have expired or are being
    unloaded."""

    def __init__(self, limits: Limits, resume_window_of: Callable[[str], float]) -> None:
        """`resume_window_of`: returns the seconds for which a session of a tenant stays parked."""
        self._limits = limits
        self._resume_window_of = resume_window_of
        self._entries: dict[str, OpenSession] = {}
        self._of_tenant: dict[str, dict[str, OpenSession]] = {}
        """The entries of each tenant that has any."""
        self._parked: dict[str, None] = {}
        """Ids of parked sessions, the oldest first."""
        self._expired: dict[str, Owner] = {}
        """Owner of each expired session, by session id, the oldest first. A request of its owner
        to resume such a session is refused as expired and not as unknown."""
        self._unloading: dict[str, asyncio.Task[None]] = {}
        """Tasks of sessions that are being unloaded or closed, by session id."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[OpenSession]:
        return iter(list(self._entries.values()))

    def __contains__(self, entry: OpenSession) -> bool:
        return self._entries.get(entry.session.id) is entry

    @property
    def connected_count(self) -> int:
        """Number of sessions with a connection."""
        return len(self._entries) - len(self._parked)

    @property
    def ids(self) -> list[str]:
        return list(self._entries)

    def of_tenant(self, tenant: str) -> Collection[OpenSession]:
        """Return a view of the sessions of a tenant, the oldest first."""
        return self._of_tenant.get(tenant, {}).values()

    def get(self, session_id: str) -> OpenSession | None:
        return self._entries.get(session_id)

    def find_observed(self, session_id: str, observer: SessionObserver) -> OpenSession | None:
        """Find the session of an observer. Returns None if it is not open any more."""
        entry = self._entries.get(session_id)
        return entry if entry is not None and entry.observer is observer else None

    def owner_of_expired(self, session_id: str) -> Owner | None:
        return self._expired.get(session_id)

    def add(self, entry: OpenSession) -> None:
        self._entries[entry.session.id] = entry
        self._of_tenant.setdefault(entry.owner.tenant, {})[entry.session.id] = entry
        if entry.close_connection is None:
            self._parked[entry.session.id] = None

    # ------------------------------------------------------------ connections

    def connect(
        self, entry: OpenSession, close_connection: CloseConnection
    ) -> CloseConnection | None:
        """Move a session to a new connection. Returns the previous one; None if it was parked."""
        previous, entry.close_connection = entry.close_connection, close_connection
        self._parked.pop(entry.session.id, None)
        entry.cancel_timers()
        entry.session.detach()
        return previous

    async def park(self, session: Session, close_connection: CloseConnection) -> None:
        """Park a session whose connection has ended, unless it has a newer connection already."""
        entry = self._entries.get(session.id)
        if (
            entry is None
            or entry.session is not session
            or entry.close_connection != close_connection
        ):
            return
        session.detach()
        entry.close_connection = None
        self._parked[session.id] = None
        log.debug("session %s parked", session.id)
        window_s, grace_s = self._resume_window_of(entry.owner.tenant), self._limits.detach_grace_s
        loop = asyncio.get_running_loop()
        entry.timers = (
            loop.call_later(grace_s, lambda: self.spawn(session.pause_generation())),
            loop.call_later(window_s, lambda: self.spawn(self._expire(entry))),
        )
        if len(self._parked) > self._limits.connected_sessions_max:
            self.unload(self._entries[next(iter(self._parked))])
        with contextlib.suppress(StoreError):  # then the longer deadline of the claim remains
            await session.stored.extend_deadline(window_s, is_parked=True)

    async def _expire(self, entry: OpenSession) -> None:
        if entry.close_connection is None:
            log.debug("session %s expired", entry.session.id)
            self._expired[entry.session.id] = entry.owner
            if len(self._expired) > EXPIRED_MAX:
                del self._expired[next(iter(self._expired))]
            await self.close(entry.session)

    # ------------------------------------------------------------ removal

    async def close(self, session: Session) -> None:
        """Close a session and delete it from the store."""
        log.debug("session %s closed", session.id)
        self._remove(session)
        await asyncio.shield(self._track_unloading(session.id, session.close()))

    def unload(self, entry: OpenSession, *, is_taken_over: bool = False) -> "asyncio.Task[None]":
        """Start to unload a session, unless that has begun already, and return the task. The
        session is not loaded here again before the task has ended: the engine could not distinguish
        late commands of the old copy from those of the new one."""
        self._remove(entry.session)
        if entry.unloading is None:
            reason = "taken over by another gateway" if is_taken_over else "unloaded"
            log.debug("session %s %s", entry.session.id, reason)
            entry.unloading = self._track_unloading(
                entry.session.id, entry.session.unload(is_taken_over=is_taken_over)
            )
        return entry.unloading

    async def wait_until_unloaded(self, session_id: str) -> None:
        """Wait until an earlier copy of a session is unloaded."""
        if unloading := self._unloading.get(session_id):
            await asyncio.shield(unloading)

    async def unload_all(self) -> None:
        """Unload all sessions; their copies in the store stay valid."""
        await asyncio.gather(*(asyncio.shield(self.unload(entry)) for entry in self))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _track_unloading(
        self, session_id: str, work: Coroutine[None, None, None]
    ) -> "asyncio.Task[None]":
        task = self.spawn(work)
        self._unloading.setdefault(session_id, task)
        task.add_done_callback(lambda task: self._on_unloaded(session_id, task))
        return task

    def _on_unloaded(self, session_id: str, task: "asyncio.Task[None]") -> None:
        if self._unloading.get(session_id) is task:
            del self._unloading[session_id]

    def _remove(self, session: Session) -> None:
        entry = self._entries.get(session.id)
        if entry is None or entry.session is not session:
            return
        del self._entries[session.id]
        own = self._of_tenant[entry.owner.tenant]
        del own[session.id]
        if not own:
            del self._of_tenant[entry.owner.tenant]
        self._parked.pop(session.id, None)
        entry.cancel_timers()

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run a task that `unload_all` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

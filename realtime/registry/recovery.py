"""Recovery: write the sessions of this gateway again after the store has lost data.

    store of this epoch ──flushed, or replaced by an empty one──▶ store of another epoch
         sessions queued, connected and parked ──SESSIONS_PER_S──▶ written again, each in one step

    restarted, or a replica that was promoted ──▶ all sessions checked, those in doubt queued

The epoch of the store shows that it is another one, and its server id that it may lack the last
writes. Each sweep also queues the sessions whose last write got no reply.
"""

import asyncio
import logging
from collections.abc import Callable

from continuo.realtime.limits import Limits
from continuo.realtime.registry.open_sessions import OpenSession, OpenSessions
from continuo.realtime.registry.ownership import OwnershipChecks
from continuo.realtime.store import LeaseLost, Store, StoreError, sweep_overdue

log = logging.getLogger(__name__)

SESSIONS_PER_S = 250
"""Maximum rate at which sessions are written again, so that the store and this gateway also serve
others meanwhile."""
CONCURRENT_WRITES = 5
RETRY_S = 0.5
"""Pause after a write that has failed, before the next one."""
GRACE_S = 10.0
"""Time after the loss during which a session that the store does not have may be another gateway's,
which has not written it again yet."""
FINISH_S = 5.0
"""Maximum time for which a stop is delayed until all sessions are written again."""


class Recovery:
    """Sweeps periodically, and writes all sessions of this gateway again when a sweep, or any other
    call, has found another store in the place of the one that had them; and single sessions when
    the store may lack a part of them.

    Owns the queue of sessions that are to be written again. A session that cannot be written for
    now is queued again; one that another gateway owns is unloaded."""

    def __init__(
        self,
        open_sessions: OpenSessions,
        ownership: OwnershipChecks,
        limits: Limits,
        store: Store,
        resume_window_of: Callable[[str], float],
    ) -> None:
        """Args:
        open_sessions: those of this gateway, all of which are written again if the store was
            replaced.
        ownership: checks whether a session is still this gateway's, and unloads one that is not.
        limits: for the interval of the sweeps, in seconds.
        store: swept; a new epoch means that it was emptied or replaced.
        resume_window_of: returns the seconds for which a session of a tenant stays parked.
        """
        self._open_sessions = open_sessions
        self._ownership = ownership
        self._limits = limits
        self._store = store
        self._resume_window_of = resume_window_of
        self._epoch = store.epoch
        """Epoch of the store to which all sessions are written, or queued to be."""
        self._server_id = store.server_id
        """Server of the store that has all sessions, as far as they are not in doubt."""
        self._lost_s: float | None = None
        """Time of the event loop at which the last loss was detected."""
        self._queue: dict[str, None] = {}
        """Ids of the sessions that are to be written again, in this order."""
        self._is_replaced = False
        """Whether the queue was made because the store was emptied or replaced."""
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_recovering(self) -> bool:
        """Whether the store may lack sessions of this gateway."""
        return self._store.epoch != self._epoch or self._is_replaced

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether a session that the store does not have may be another gateway's, which may write
        it again: it is unknown for now only."""
        if not self._store.is_shared:
            return False
        now_s = asyncio.get_running_loop().time()
        is_recent = self._lost_s is not None and now_s < self._lost_s + GRACE_S
        return self.is_recovering or is_recent

    async def run(self) -> None:
        """Sweep periodically: remove overdue sessions from the store, check the ownership of our
        own, and write them again if the store has lost them."""
        while True:
            await asyncio.sleep(self._limits.sweep_interval_s)
            try:
                async for _ in sweep_overdue(self._store):
                    pass
                await self._check_ownership()
            except StoreError as error:
                log.debug("the sweep failed: %s", error)
            else:
                self._queue_doubted()
            self.check()

    async def _check_ownership(self) -> None:
        """Check some of the sessions, or all of them if the store may lack the last writes. Raises
        StoreError."""
        server_id = self._store.server_id
        if server_id == self._server_id:
            await self._ownership.check_some()
            return
        self._lost_s = asyncio.get_running_loop().time()
        log.info("the store was restarted, or has failed over: all sessions are checked")
        if await self._ownership.check_all():
            self._server_id = server_id

    def _queue_doubted(self) -> None:
        """Begin to write the sessions that are in doubt, if there are any."""
        doubted = [
            each.session.id for each in self._open_sessions if each.session.stored.is_in_doubt
        ]
        self._queue.update(dict.fromkeys(doubted))
        self._write_queue()

    def check(self) -> None:
        """Begin to write all sessions again if the store is another one."""
        if self._store.epoch == self._epoch:
            return
        self._epoch = self._store.epoch
        self._lost_s = asyncio.get_running_loop().time()
        self._queue = dict.fromkeys(self._open_sessions.ids)
        log.warning(
            "the store was emptied or replaced: %d sessions are written again", len(self._queue)
        )
        self._is_replaced = True
        self._write_queue()

    def _write_queue(self) -> None:
        if self._writing is None and (self._queue or self._is_replaced):
            self._writing = asyncio.create_task(self._write_queued(), name="recovery")

    async def finish(self) -> None:
        """Write what is queued, for at most FINISH_S, before the sessions are unloaded."""
        self.check()
        if self._writing is not None:
            _, unfinished = await asyncio.wait((self._writing,), timeout=FINISH_S)
            if unfinished:
                log.warning("%d sessions are not in the store at the end", len(self._queue))
                self._writing.cancel()

    async def _write_queued(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await asyncio.gather(*(self._write_in_turn() for _ in range(CONCURRENT_WRITES)))
        finally:
            self._writing = None
        if self._is_replaced:
            self._is_replaced = False
            log.warning("the sessions are in the store again, after %.1f s", loop.time() - began_s)

    async def _write_in_turn(self) -> None:
        """Write queued sessions, one after the other, at this share of SESSIONS_PER_S."""
        loop = asyncio.get_running_loop()
        while self._queue:
            next_s = loop.time() + CONCURRENT_WRITES / SESSIONS_PER_S
            session_id = next(iter(self._queue))
            del self._queue[session_id]
            entry = self._open_sessions.get(session_id)
            if entry is not None and not await self._try_write(entry):
                if self._is_replaced:
                    self._queue[session_id] = None
                next_s = loop.time() + RETRY_S
            await asyncio.sleep(next_s - loop.time())

    async def _try_write(self, entry: OpenSession) -> bool:
        """Write a session again. Returns False if that is to be tried again."""
        try:
            await entry.session.write_again()
            if entry.close_connection is None:
                window_s = self._resume_window_of(entry.owner.tenant)
                await entry.session.stored.extend_deadline(window_s, is_parked=True)
        except LeaseLost as error:
            if entry in self._open_sessions:
                self._ownership.unload_lost(entry, error)
        except StoreError as error:
            log.debug("session %s is not written again yet: %s", entry.session.id, error)
            return False
        except Exception:
            log.exception("session %s is not written again", entry.session.id)
        return True

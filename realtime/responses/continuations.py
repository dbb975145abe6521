"""Continuation points: the finished responses that a new one may continue, and their branches.

    branch 1   ── a ── b ── d          an engine session whose last response is d: its tip
                   └── c    branch 2   a fork of branch 1, made for c: a was no longer the tip

Continuing the tip appends to the engine session; continuing an older response forks it. Either way
the common history is not computed again. Points that are not used expire. Above a limit, the least
recently used points are evicted; their KV may still be found in the engine's radix tree.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from continuo.engine import EngineClient, EngineError, SessionGroup
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.limits import Limits

log = logging.getLogger(__name__)


class Branch:
    """An engine session in which responses continue one another.

    `tip`: id of the last response of the branch; `is_busy`: whether that response is being
    generated.
    """

    def __init__(self, engine_session: EngineSession, tip: str) -> None:
        self.engine_session = engine_session
        self.tip = tip
        self.is_busy = True
        self.point_count = 0
        self.token_count = 0


class ContinuationPoint:
    """A finished response, with the conversation up to and including it.

    `connection`: the only connection that may continue the response; None means all connections of
    the tenant.
    """

    def __init__(
        self,
        response_id: str,
        conversation: Conversation,
        branch: Branch,
        *,
        tenant: str,
        connection: str | None = None,
        store_epoch: str | None = None,
    ) -> None:
        """`store_epoch`: epoch of the store that has the response too; None: no store has it."""
        self.response_id = response_id
        self.tenant = tenant
        self.connection = connection
        self.store_epoch = store_epoch
        self.conversation = conversation
        self.branch = branch
        self.last_used_s = 0.0

    @property
    def is_stored(self) -> bool:
        return self.store_epoch is not None


class Continuations:
    """The continuation points in memory, of all tenants."""

    def __init__(
        self, engine: EngineClient, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._points: OrderedDict[str, ContinuationPoint] = OrderedDict()
        """Points by response id, least recently used first."""
        self._points_by_connection: dict[str, OrderedDict[str, ContinuationPoint]] = {}
        """By connection: the points that only this connection may continue, least recently used
        first."""
        self._token_count = 0
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._points)

    @property
    def token_count(self) -> int:
        """Number of tokens of the conversations in memory; a branch is counted once, however many
        points it has."""
        return self._token_count

    def find(
        self, response_id: str, tenant: str, connection: str | None
    ) -> ContinuationPoint | None:
        """Find the point of a response. Returns None if it is not found, or if this tenant or
        connection may not continue it."""
        point = self._points.get(response_id)
        if point is None or point.tenant != tenant or point.connection not in (None, connection):
            return None
        self._touch(point)
        return point

    def branch(
        self, continuation: ContinuationPoint | None, response_id: str, group: SessionGroup
    ) -> Branch:
        """Return the branch in which to generate `response_id` as the continuation of a point.

        Without a point, returns a new branch; if the point is the idle tip of its branch, returns
        that branch; else returns a fork of it.
        """
        if continuation is None:
            return Branch(EngineSession(self._engine, response_id, group=group), response_id)
        branch = continuation.branch
        if branch.tip == continuation.response_id and not branch.is_busy:
            branch.tip, branch.is_busy = response_id, True
            return branch
        return Branch(
            EngineSession(self._engine, response_id, group=group, parent=branch.engine_session),
            response_id,
        )

    def add(self, continuation: ContinuationPoint) -> None:
        """Add the point of a finished response and mark its branch idle. May evict other points."""
        branch = continuation.branch
        self._points[continuation.response_id] = continuation
        if continuation.connection is not None:
            self._points_by_connection.setdefault(continuation.connection, OrderedDict())[
                continuation.response_id
            ] = continuation
        branch.point_count += 1
        self._token_count += continuation.conversation.length - branch.token_count
        branch.token_count, branch.is_busy = continuation.conversation.length, False
        self._touch(continuation)
        self._evict(continuation)

    def abandon(self, branch: Branch) -> None:
        """Release the branch of a finished response that cannot be continued."""
        branch.is_busy = False
        self._release(branch)

    def remove(self, response_id: str) -> None:
        """Remove the point of a response; harmless if it is not found."""
        point = self._points.pop(response_id, None)
        if point is None:
            return
        if point.connection is not None:
            owned = self._points_by_connection[point.connection]
            del owned[response_id]
            if not owned:
                del self._points_by_connection[point.connection]
        point.branch.point_count -= 1
        self._release(point.branch)

    def close_connection(self, connection: str) -> None:
        """Remove the points that only this connection could continue."""
        for response_id in list(self._points_by_connection.get(connection, ())):
            self.remove(response_id)

    def close_tenant(self, tenant: str) -> None:
        """Remove the points of a tenant."""
        for point in list(self._points.values()):
            if point.tenant == tenant:
                self.remove(point.response_id)

    async def close(self) -> None:
        """Remove all points, and wait for the engine sessions to close."""
        for response_id in list(self._points):
            self.remove(response_id)
        if self._timer is not None:
            self._timer.cancel()
        if self._close_tasks:
            await asyncio.wait(self._close_tasks, timeout=self._limits.close_timeout_s)

    # ------------------------------------------------------------ eviction

    def _touch(self, continuation: ContinuationPoint) -> None:
        continuation.last_used_s = self._clock()
        self._points.move_to_end(continuation.response_id)
        if continuation.connection is not None:
            self._points_by_connection[continuation.connection].move_to_end(
                continuation.response_id
            )

    def _evict(self, newest: ContinuationPoint) -> None:
        limits = self._limits
        if newest.connection is not None:
            owned = self._points_by_connection[newest.connection]
            while len(owned) > limits.connection_continuation_points_max:
                self.remove(next(iter(owned)))
        while len(self._points) > 1 and (
            len(self._points) > limits.continuation_points_max
            or self._token_count > limits.continuation_tokens_max
        ):
            self.remove(next(iter(self._points)))
        self._expire()

    def _expire(self) -> None:
        """Remove the points whose TTL has passed, and schedule the next call of this function."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._points:
            oldest = next(iter(self._points.values()))
            left_s = oldest.last_used_s + self._limits.continuation_point_ttl_s - self._clock()
            if left_s > 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(left_s, self._expire)
                return
            self.remove(oldest.response_id)

    def _release(self, branch: Branch) -> None:
        if branch.point_count or branch.is_busy:
            return
        self._token_count -= branch.token_count
        branch.token_count = 0
        task = asyncio.create_task(
            _close_engine_session(branch.engine_session),
            name=f"close {branch.engine_session.session_id}",
        )
        self._close_tasks.add(task)
        task.add_done_callback(self._close_tasks.discard)


async def _close_engine_session(engine_session: EngineSession) -> None:
    with contextlib.suppress(EngineError):
        await engine_session.close()

"""Continuation points: the finished responses that a new one may continue, and their branches.

    branch 1   ── a ── b ── d          an engine session whose last response is d: its tip
                   └── c    branch 2   a fork of branch 1, made for c: a was no longer the tip

Continuing the tip appends to the engine session; continuing an older response forks it. Either way
the common history is not computed again. Points that are not used expire. Above a limit, the least
recently used points are evicted; their KV may still be found in the engine's radix tree. The limit
is of resident bytes, where what several points share counts once, and each tenant has a share.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from continuo.engine import CacheSize, EngineClient, EngineError, ResidentCache, SessionGroup
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.limits import Limits
from continuo.realtime.responses.conversation_memory import ConversationMemory

log = logging.getLogger(__name__)
_POINT_BYTES = 1024
"""Resident bytes of a point without its conversation."""
_BRANCH_BYTES = 4096
"""Resident bytes of a branch, in the gateway and in the engine, without its token ids."""
_BRANCH_TOKEN_BYTES = 8
"""Resident bytes of a token in the logs of a branch: the engine's, and the gateway's for the newest
response."""


class Branch:
    """An engine session in which responses continue one another.

    `tip`: id of the last response of the branch; `is_busy`: whether that response is being
    generated. `newest`: the conversation with the last response that has ended, which the engine
    session has; None if the branch has no points. `holds_newest`: whether the branch itself holds
    it, because it has no point, or no longer.
    """

    def __init__(self, engine_session: EngineSession, tip: str) -> None:
        self.engine_session = engine_session
        self.tip = tip
        self.is_busy = True
        self.point_count = 0
        self.newest: Conversation | None = None
        self.holds_newest = False


class ContinuationPoint:
    """A finished response that later ones may continue."""

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
        """Args:
        response_id: id that `previous_response_id` names.
        conversation: up to and including the response.
        branch: has the engine session with the token ids of `conversation`, or of a later point.
        tenant: name of the only tenant that may continue the response.
        connection: the only connection that may continue the response. None: all connections of the
            tenant may.
        store_epoch: epoch of the store that has the response too. None: no store has it.
        """
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
        self._memory = ConversationMemory()
        self._cache: ResidentCache[str, None] = ResidentCache(
            limits.continuation_bytes_max,
            entries_max=limits.continuation_points_max,
            candidates=1,
            on_removed=lambda response_id, _: self._on_removed(response_id),
        )
        """Decides which points are evicted."""
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._points)

    @property
    def held_bytes(self) -> int:
        """Resident bytes of all points, with their conversations and branches."""
        return self._cache.held_bytes

    @property
    def size(self) -> CacheSize:
        return self._cache.size

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
        """Add the point of a finished response and mark its branch idle. May evict other points. A
        point that takes more than the share of a tenant is not kept."""
        branch, conversation = continuation.branch, continuation.conversation
        new_bytes, held_bytes = self._memory.hold(conversation)
        held_bytes += _POINT_BYTES + _measure_log(conversation)
        if held_bytes > self._cache.share_bytes:
            log.warning(
                "response %s cannot be continued from memory: it takes %d MiB",
                continuation.response_id,
                held_bytes >> 20,
            )
            self._memory.release(conversation)
            self.abandon(branch, conversation, continuation.tenant)
            return
        self._points[continuation.response_id] = continuation
        if continuation.connection is not None:
            self._points_by_connection.setdefault(continuation.connection, OrderedDict())[
                continuation.response_id
            ] = continuation
        branch.point_count += 1
        branch.is_busy = False
        new_bytes += self._set_newest(branch, conversation, is_held=False)
        self._cache.charge(continuation.tenant, new_bytes)
        self._cache.add(continuation.response_id, None, _POINT_BYTES, continuation.tenant)
        self._touch(continuation)
        self._evict_of_connection(continuation)
        self._expire()

    def abandon(self, branch: Branch, conversation: Conversation, tenant: str) -> None:
        """Release the branch of a finished response that cannot be continued. `conversation`: the
        one with that response."""
        branch.is_busy = False
        if branch.point_count:
            self._cache.charge(tenant, self._set_newest(branch, conversation, is_held=True))
        else:
            self._release(branch)

    def remove(self, response_id: str) -> None:
        """Remove the point of a response; harmless if it is not found."""
        self._cache.remove(response_id)

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
        self._cache.get(continuation.response_id)
        self._points.move_to_end(continuation.response_id)
        if continuation.connection is not None:
            self._points_by_connection[continuation.connection].move_to_end(
                continuation.response_id
            )

    def _evict_of_connection(self, newest: ContinuationPoint) -> None:
        if newest.connection is None:
            return
        owned = self._points_by_connection[newest.connection]
        while len(owned) > self._limits.connection_continuation_points_max:
            self.remove(next(iter(owned)))

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

    def _on_removed(self, response_id: str) -> None:
        point = self._points.pop(response_id)
        if point.connection is not None:
            owned = self._points_by_connection[point.connection]
            del owned[response_id]
            if not owned:
                del self._points_by_connection[point.connection]
        branch = point.branch
        branch.point_count -= 1
        freed_bytes = 0
        if branch.point_count and branch.newest is point.conversation:
            branch.holds_newest = True  # in place of the point
        else:
            freed_bytes = self._memory.release(point.conversation)
        if not branch.point_count:
            freed_bytes += self._release(branch)
        self._cache.charge(point.tenant, -freed_bytes)

    def _set_newest(self, branch: Branch, conversation: Conversation, *, is_held: bool) -> int:
        """Set the newest conversation of a branch. `is_held`: the branch holds it, because it has
        no point. Returns how many more bytes it takes."""
        new_bytes = _measure_log(conversation)
        if is_held:
            new_bytes += self._memory.hold(conversation)[0]
        new_bytes -= self._release_newest(branch)
        branch.newest, branch.holds_newest = conversation, is_held
        return new_bytes

    def _release_newest(self, branch: Branch) -> int:
        """Release the newest conversation of a branch. Returns the bytes that are freed."""
        newest, branch.newest = branch.newest, None
        if newest is None:
            return 0
        return _measure_log(newest) + (self._memory.release(newest) if branch.holds_newest else 0)

    def _release(self, branch: Branch) -> int:
        """Release a branch without points: close its engine session, unless a response is being
        generated there. Returns the bytes that are freed."""
        freed_bytes = self._release_newest(branch)
        if not branch.is_busy:
            task = asyncio.create_task(
                _close_engine_session(branch.engine_session),
                name=f"close {branch.engine_session.session_id}",
            )
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)
        return freed_bytes


def _measure_log(conversation: Conversation) -> int:
    """Return the bytes of a branch whose newest conversation this is, without the conversation."""
    return _BRANCH_BYTES + _BRANCH_TOKEN_BYTES * conversation.length


async def _close_engine_session(engine_session: EngineSession) -> None:
    with contextlib.suppress(EngineError):
        await engine_session.close()

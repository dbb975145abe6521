"""Lineage: the answers one can go on from, and the engine sessions they lie in.

    line 1   ── a ── b ── d          an engine session, in which d stands last: its tip
                 └── c    line 2     a fork of it, made when c went on from a after b had

Going on from the tip continues the engine's session; from an older answer, it forks it. Either way
what is common is not computed again. What is not used for long, or is too much, is forgotten, least
recently used first; KV that is let go of may still be found in the engine's shared tree.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from continuo.engine import EngineError
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.limits import Limits

log = logging.getLogger(__name__)


class Branch:
    """An engine session. `tip` is the answer that stands last in it, `busy` while that is made."""

    def __init__(self, engine_session: EngineSession, tip: str) -> None:
        self.engine_session = engine_session
        self.tip = tip
        self.is_busy = True
        self.point_count = 0
        self.token_count = 0


class ContinuationPoint:
    """A finished answer, and all that was said up to it. `owner` is the connection that alone may
    go on from it; None: the tenant's."""

    def __init__(
        self,
        response_id: str,
        conversation: Conversation,
        branch: Branch,
        *,
        tenant: str,
        connection: str | None = None,
        is_stored: bool = False,
    ) -> None:
        """`kept`: the store has it too."""
        self.response_id = response_id
        self.tenant = tenant
        self.connection = connection
        self.is_stored = is_stored
        self.conversation = conversation
        self.branch = branch
        self.last_used_s = 0.0


class Continuations:
    def __init__(
        self, engine: EnginePort, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._points: OrderedDict[str, ContinuationPoint] = OrderedDict()
        """Least recently used first."""
        self._points_by_connection: dict[str, OrderedDict[str, ContinuationPoint]] = {}
        """Those of a connection, likewise."""
        self._token_count = 0
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._points)

    @property
    def token_count(self) -> int:
        """Of the conversations in memory, counted once a line."""
        return self._token_count

    def find(
        self, response_id: str, tenant: str, connection: str | None
    ) -> ContinuationPoint | None:
        """None, too, if it is somebody else's."""
        point = self._points.get(response_id)
        if point is None or point.tenant != tenant or point.connection not in (None, connection):
            return None
        self._touch(point)
        return point

    def branch(
        self, continuation: ContinuationPoint | None, response_id: str, cache_scope: str
    ) -> Branch:
        """Where an answer is going to be made that goes on from this point."""
        if continuation is None:
            return Branch(
                EngineSession(self._engine, response_id, cache_scope=cache_scope), response_id
            )
        line = continuation.branch
        if line.tip == continuation.response_id and not line.is_busy:
            line.tip, line.is_busy = response_id, True
            return line
        return Branch(
            EngineSession(
                self._engine, response_id, cache_scope=cache_scope, parent=line.engine_session
            ),
            response_id,
        )

    def add(self, continuation: ContinuationPoint) -> None:
        """Its line is at rest again. What is too much is forgotten."""
        line = continuation.branch
        self._points[continuation.response_id] = continuation
        if continuation.connection is not None:
            self._points_by_connection.setdefault(continuation.connection, OrderedDict())[
                continuation.response_id
            ] = continuation
        line.point_count += 1
        self._token_count += continuation.conversation.length - line.token_count
        line.token_count, line.is_busy = continuation.conversation.length, False
        self._touch(continuation)
        self._evict(continuation)

    def abandon(self, branch: Branch) -> None:
        """Nobody can go on from what was made there."""
        branch.is_busy = False
        self._release(branch)

    def remove(self, response_id: str) -> None:
        """Harmless if it is not there."""
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
        """The connection is gone, and with it what only it could go on from."""
        for id in list(self._points_by_connection.get(connection, ())):
            self.remove(id)

    async def close(self) -> None:
        for id in list(self._points):
            self.remove(id)
        if self._timer is not None:
            self._timer.cancel()
        if self._close_tasks:
            await asyncio.wait(self._close_tasks, timeout=self._limits.close_timeout_s)

    # ------------------------------------------------------------ inside

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
        """Forgets what nobody has used for long, and looks again when the next may be due."""
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

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
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.engine_session import Strand
from continuo.realtime.limits import Limits

log = logging.getLogger(__name__)


class Line:
    """An engine session. `tip` is the answer that stands last in it, `busy` while that is made."""

    def __init__(self, strand: Strand, tip: str) -> None:
        self.strand = strand
        self.tip = tip
        self.busy = True
        self.points = 0
        self.tokens = 0


class Point:
    """A finished answer, and all that was said up to it. `owner` is the connection that alone may
    go on from it; None: the tenant's."""

    def __init__(
        self,
        id: str,
        conversation: Conversation,
        line: Line,
        *,
        tenant: str,
        owner: str | None = None,
        kept: bool = False,
    ) -> None:
        """`kept`: the store has it too."""
        self.id = id
        self.tenant = tenant
        self.owner = owner
        self.kept = kept
        self.conversation = conversation
        self.line = line
        self.used_s = 0.0


class Lineage:
    def __init__(
        self, door: Door, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._door = door
        self._limits = limits
        self._clock = clock
        self._points: OrderedDict[str, Point] = OrderedDict()
        """Least recently used first."""
        self._owned: dict[str, OrderedDict[str, Point]] = {}
        """Those of a connection, likewise."""
        self._tokens = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._points)

    @property
    def tokens(self) -> int:
        """Of the conversations in memory, counted once a line."""
        return self._tokens

    def find(self, id: str, tenant: str, connection: str | None) -> Point | None:
        """None, too, if it is somebody else's."""
        point = self._points.get(id)
        if point is None or point.tenant != tenant or point.owner not in (None, connection):
            return None
        self._use(point)
        return point

    def branch(self, point: Point | None, answer: str, scope: str) -> Line:
        """Where an answer is going to be made that goes on from this point."""
        if point is None:
            return Line(Strand(self._door, answer, scope=scope), answer)
        line = point.line
        if line.tip == point.id and not line.busy:
            line.tip, line.busy = answer, True
            return line
        return Line(Strand(self._door, answer, scope=scope, parent=line.strand), answer)

    def add(self, point: Point) -> None:
        """Its line is at rest again. What is too much is forgotten."""
        line = point.line
        self._points[point.id] = point
        if point.owner is not None:
            self._owned.setdefault(point.owner, OrderedDict())[point.id] = point
        line.points += 1
        self._tokens += point.conversation.length - line.tokens
        line.tokens, line.busy = point.conversation.length, False
        self._use(point)
        self._shrink(point)

    def give_up(self, line: Line) -> None:
        """Nobody can go on from what was made there."""
        line.busy = False
        self._release(line)

    def forget(self, id: str) -> None:
        """Harmless if it is not there."""
        point = self._points.pop(id, None)
        if point is None:
            return
        if point.owner is not None:
            owned = self._owned[point.owner]
            del owned[id]
            if not owned:
                del self._owned[point.owner]
        point.line.points -= 1
        self._release(point.line)

    def leave(self, connection: str) -> None:
        """The connection is gone, and with it what only it could go on from."""
        for id in list(self._owned.get(connection, ())):
            self.forget(id)

    async def close(self) -> None:
        for id in list(self._points):
            self.forget(id)
        if self._timer is not None:
            self._timer.cancel()
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._limits.close_s_max)

    # ------------------------------------------------------------ inside

    def _use(self, point: Point) -> None:
        point.used_s = self._clock()
        self._points.move_to_end(point.id)
        if point.owner is not None:
            self._owned[point.owner].move_to_end(point.id)

    def _shrink(self, newest: Point) -> None:
        limits = self._limits
        if newest.owner is not None:
            owned = self._owned[newest.owner]
            while len(owned) > limits.connection_points_max:
                self.forget(next(iter(owned)))
        while len(self._points) > 1 and (
            len(self._points) > limits.points_max or self._tokens > limits.points_tokens_max
        ):
            self.forget(next(iter(self._points)))
        self._expire()

    def _expire(self) -> None:
        """Forgets what nobody has used for long, and looks again when the next may be due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._points:
            oldest = next(iter(self._points.values()))
            left_s = oldest.used_s + self._limits.point_s_max - self._clock()
            if left_s > 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(left_s, self._expire)
                return
            self.forget(oldest.id)

    def _release(self, line: Line) -> None:
        if line.points or line.busy:
            return
        self._tokens -= line.tokens
        line.tokens = 0
        task = asyncio.create_task(_closed(line.strand), name=f"close {line.strand.session}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _closed(strand: Strand) -> None:
    with contextlib.suppress(EngineError):
        await strand.close()

"""Loop account: the event-loop time that one connection uses, and whether it achieves something.

What a connection sends is parsed on the event loop, and handled on it. Both are timed, by the clock
of the wall (see `read_turns`). A connection that uses over SHARE_MAX of the loop for WINDOW_S,
while none of its events is executed and none of its requests answered with a status below 400, is
closed.
"""

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar

from continuo.realtime import metrics
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.time_bucket import TimeBucket

WINDOW_S = 5.0
SHARE_MAX = 0.2
STEP_S_MAX = 0.1
"""Maximum time in seconds that is charged at once: a pause of the whole process, which happens to
be within a connection's turn, is not the connection's."""
LIGHT_SHARE_MAX = 0.05
"""Share of the loop that a light connection uses at most, on average."""
LIGHT_S_MAX = 0.02
"""Time in seconds that a light connection may use at once beyond that share."""
UNCHARGED_S_MAX = 0.0002
"""Time in seconds that is charged later, with what follows: most messages take less to parse."""
_USED_S_MAX = WINDOW_S * SHARE_MAX

_Result = TypeVar("_Result")


class LoopAccount:
    """The time in seconds that one connection has used, which also counts in the metric of its
    class. `clock`: time in seconds."""

    __slots__ = (
        "_class",
        "_clock",
        "_light_time",
        "_step_began_s",
        "_uncharged_s",
        "_used_s",
        "_window_began_s",
        "is_exceeded",
        "tenant",
    )

    def __init__(
        self,
        connection_class: Literal["http", "websocket"],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._class = connection_class
        self.is_exceeded = False
        """Whether the connection has used more than its share without an effect."""
        self._step_began_s: float | None = None
        """When the present step of a timed coroutine began; None outside of one."""
        self._uncharged_s = 0.0
        self._used_s = 0.0
        """Time used in the present window, which begins anew with each effect."""
        self._window_began_s = 0.0
        self._light_time = TimeBucket(LIGHT_SHARE_MAX, LIGHT_S_MAX, clock)
        self.tenant: TenantLedger | None = None
        """The tenant of the connection; None: not known."""

    @property
    def is_light(self) -> bool:
        """Whether the connection has used little time lately, and so have the light connections of
        its tenant together."""
        if not self._light_time.has_time():
            return False
        return self.tenant is None or self.tenant.light_time.has_time()

    def spend(self, seconds: float) -> None:
        """Charge time on the event loop. No effect within a step of a timed coroutine, because that
        is charged as a whole."""
        if self._step_began_s is None:
            self._uncharged_s += seconds
            if self._uncharged_s > UNCHARGED_S_MAX:
                self._charge(0.0)

    def credit(self) -> None:
        """Note an effect: an event was executed, or a part of a response with a status below 400
        is sent."""
        self._used_s, self.is_exceeded = 0.0, False

    async def timed(
        self, function: Callable[..., Coroutine[Any, Any, _Result]], *arguments: object
    ) -> _Result:
        """Call a coroutine function, and charge the time that its steps take."""
        return await self._drive(function(*arguments))

    @types.coroutine
    def _drive(self, coroutine: Coroutine[Any, Any, _Result]) -> Generator[Any, Any, _Result]:
        """Run the steps of a coroutine, and charge the time of each."""
        sent: object = None
        thrown: BaseException | None = None
        while True:
            self._step_began_s = self._clock()
            try:
                awaited = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
            except StopIteration as end:
                return end.value
            finally:
                used_s, self._step_began_s = self._clock() - self._step_began_s, None
                self._charge(used_s)
                sent = thrown = None  # an exception that refers to this frame would be garbage
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - all go to the coroutine
                thrown = error
            awaited = None  # a future with the exception that comes to refer to this frame

    def _charge(self, seconds: float) -> None:
        seconds += self._uncharged_s
        self._uncharged_s = 0.0
        metrics.loop_seconds.used_s[self._class] += seconds
        seconds = min(seconds, STEP_S_MAX)
        now_s = self._clock()
        if self.tenant is not None and self.is_light:
            self.tenant.light_time.take(seconds)
        self._light_time.take(seconds)
        if not self._used_s:
            self._window_began_s = now_s
        self._used_s += seconds
        if self._used_s > _USED_S_MAX:
            if now_s - self._window_began_s <= WINDOW_S:
                self.is_exceeded = True
            self._used_s = 0.0

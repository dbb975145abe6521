"""Time bucket: an allowance of time on the event loop that refills. Pure."""

from continuo.realtime.tenants.token_bucket import MonotonicClock


class TimeBucket:
    """Permits `share` of the time that passes (0 to 1), on average, and `most_s` seconds at once.

    It may be overdrawn, as the time of a piece of work is known at its end.
    """

    __slots__ = ("_clock", "_left_s", "_most_s", "_refilled_s", "_share")

    def __init__(self, share: float, most_s: float, clock: MonotonicClock) -> None:
        self._share = share
        self._most_s = self._left_s = most_s
        self._clock = clock
        self._refilled_s = clock()

    def has_time(self) -> bool:
        now_s = self._clock()
        left_s = self._left_s + (now_s - self._refilled_s) * self._share
        self._left_s, self._refilled_s = min(self._most_s, left_s), now_s
        return left_s > 0

    def take(self, seconds: float) -> None:
        self._left_s -= seconds

"""Token bucket: an allowance that refills. Pure."""

from collections.abc import Callable

MonotonicClock = Callable[[], float]
"""Returns the time in seconds."""


class TokenBucket:
    def __init__(self, capacity: int, clock: MonotonicClock, period_s: float = 60.0) -> None:
        """`period_s`: time in which an empty bucket is filled."""
        self.capacity = capacity
        self._clock = clock
        self._period_s = period_s
        self._available = float(capacity)
        self._updated_s = clock()
        self._unexchanged = 0.0
        """Amount taken here since the last exchange with the bucket that all gateways share."""

    @property
    def available(self) -> float:
        """Amount in the bucket now; negative if it is in debt."""
        now_s = self._clock()
        refill = (now_s - self._updated_s) * self.capacity / self._period_s
        self._available = min(float(self.capacity), self._available + refill)
        self._updated_s = now_s
        return self._available

    def take(self, amount: float) -> None:
        self._available = self.available - amount
        self._unexchanged += amount

    def take_one(self) -> bool:
        """Take 1 if the bucket holds that. Returns whether it does. Written out, because it is part
        of each operation."""
        now_s, capacity = self._clock(), self.capacity
        available = self._available + (now_s - self._updated_s) * capacity / self._period_s
        if available > capacity:
            available = float(capacity)
        self._updated_s = now_s
        is_held = available >= 1
        self._available = available - 1 if is_held else available
        return is_held

    def resize(self, capacity: int) -> None:
        """Change the capacity; what was taken stays taken."""
        self._available = self.available + capacity - self.capacity
        self.capacity = capacity

    @property
    def is_active(self) -> bool:
        """Whether an amount was taken that is not refilled or not exchanged yet."""
        return self._unexchanged != 0 or self.available < self.capacity

    def begin_exchange(self) -> float:
        """Return the amount to take from the shared bucket."""
        amount, self._unexchanged = self._unexchanged, 0.0
        return amount

    def restore_exchange(self, amount: float) -> None:
        """Undo `begin_exchange`, because the exchange has failed."""
        self._unexchanged += amount

    def end_exchange(self, level: float) -> None:
        """Adopt the level of the shared bucket, less what was taken here meanwhile."""
        self._available = min(float(self.capacity), level - self._unexchanged)
        self._updated_s = self._clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until the bucket holds `amount`."""
        return max(0.0, (amount - self.available) * self._period_s / self.capacity)

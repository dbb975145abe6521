"""What a tenant may do in a minute: responses and tokens, in buckets that fill all the time. Pure.

A response counts when it begins. Its tokens are known when it has ended: a bucket may then be in
debt, and nothing begins until that is paid.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from realtime.errors import Refusal
from realtime.limits import Limits
from realtime.protocol.core import Level, Limited, Usage

Clock = Callable[[], float]
"""Seconds."""


class Bucket:
    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._left = float(limit)
        self._at_s = clock()

    @property
    def left(self) -> float:
        """Below 0: in debt."""
        now_s = self._clock()
        more = (now_s - self._at_s) * self.limit / 60
        self._left, self._at_s = min(float(self.limit), self._left + more), now_s
        return self._left

    def take(self, amount: float) -> None:
        self._left = self.left - amount

    def wait_s(self, amount: float) -> float:
        """Until so much is in it."""
        return max(0.0, (amount - self.left) * 60 / self.limit)


class Allowance:
    """One tenant's."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        asked: dict[Limited, int] = {
            "requests": limits.requests_per_minute,
            "tokens": limits.tokens_per_minute,
        }
        self._buckets: dict[Limited, Bucket] = {
            name: Bucket(limit, clock) for name, limit in asked.items() if limit
        }

    @contextmanager
    def request(self) -> Generator[None]:
        """Around the beginning of a response, which counts if it begins. Raises Refusal."""
        for name, bucket in self._buckets.items():
            wait_s = bucket.wait_s(1)
            if wait_s > 0:
                raise _used_up(name, bucket.limit, wait_s)
        self._take("requests", 1)
        try:
            yield
        except BaseException:
            self._take("requests", -1)
            raise

    def spend(self, usage: Usage | None) -> None:
        """What a response took: tokens found in KV cost nothing."""
        if usage is not None:
            computed = usage.input_tokens - usage.cached_tokens + usage.output_tokens
            self._take("tokens", computed)

    def levels(self) -> list[Level]:
        """Nothing of what has no limit."""
        return [
            Level(
                name=name,
                limit=bucket.limit,
                remaining=max(0, int(bucket.left)),
                reset_s=bucket.wait_s(bucket.limit),
            )
            for name, bucket in self._buckets.items()
        ]

    def _take(self, name: Limited, amount: float) -> None:
        if name in self._buckets:
            self._buckets[name].take(amount)


class Rates:
    """Of all tenants of this process."""

    def __init__(self, limits: Limits | None = None, clock: Clock = time.monotonic) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._of: dict[str, Allowance] = {}

    def of(self, tenant: str) -> Allowance:
        if tenant not in self._of:
            self._of[tenant] = Allowance(self._limits, self._clock)
        return self._of[tenant]


def _used_up(name: Limited, limit: int, wait_s: float) -> Refusal:
    return Refusal(
        f"The limit of {limit:,} {name} a minute is reached. Try again in {wait_s:.1f} s.",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )

"""What a tenant may do in a minute: responses and tokens, in buckets that fill all the time. Pure.

A response counts when it begins, and still counts if it is refused for a fault of the client or its
client goes away. Its tokens are known when it has ended: a bucket may then be in debt, and nothing
begins until that is paid. Text that was tokenised for nothing is charged by its length.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from continuo.engine import BadRequest
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.events import Level, Limited
from continuo.realtime.protocol.response import Usage

Clock = Callable[[], float]
"""Seconds."""
Judge = Callable[[BaseException], bool]
CHARS_PER_TOKEN = 4
"""An estimate, where the tokens of a text were not counted."""


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
        self._free_chars = limits.off_loop_chars

    @contextmanager
    def request(self, ours: Judge | None = None) -> Generator[None]:
        """Around the beginning of a response, which counts unless it fails by our fault (`ours`
        says which errors are). Raises Refusal."""
        for name in self._buckets:
            self._check(name)
        self._take("requests", 1)
        try:
            yield
        except BaseException as error:
            if (ours or is_ours)(error):
                self._take("requests", -1)
            raise

    @contextmanager
    def text(self, chars: int, tokens_max: int, ours: Judge | None = None) -> Generator[None]:
        """Around the tokenisation of a request's text. A long one does not begin while the tokens
        bucket is in debt; one that is refused, or not finished, is charged what its length amounts
        to, `tokens_max` at most. Raises Refusal."""
        if chars > self._free_chars and "tokens" in self._buckets:
            self._check("tokens")
        try:
            yield
        except BaseException as error:
            if not (ours or is_ours)(error):
                self.charge(min(chars // CHARS_PER_TOKEN, tokens_max))
            raise

    def charge(self, tokens: int) -> None:
        """Charge tokens that were computed for no response, or before any."""
        self._take("tokens", tokens)

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

    def _check(self, name: Limited) -> None:
        """Raises Refusal if there is not one in the bucket."""
        bucket = self._buckets[name]
        wait_s = bucket.wait_s(1)
        if wait_s > 0:
            raise _used_up(name, bucket.limit, wait_s)

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


def is_ours(error: BaseException) -> bool:
    """Whether a request failed by a fault of the server, not of its client."""
    if isinstance(error, Refusal):
        return error.kind == "server_error"
    return isinstance(error, Exception) and not isinstance(error, BadRequest)


def _used_up(name: Limited, limit: int, wait_s: float) -> Refusal:
    return Refusal(
        f"The limit of {limit:,} {name} a minute is reached. Try again in {wait_s:.1f} s.",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )

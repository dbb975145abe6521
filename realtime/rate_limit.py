"""Rate limits of a tenant: token buckets for responses and tokens per minute. Pure.

A request is charged when its response begins. The charge is refunded only after a fault of the
server, not after a fault or a disconnect of the client. Tokens are charged when the response has
ended. That may put the bucket into debt (a negative level), and no response begins until refills
have paid it. Text that was tokenized for a request that failed is charged by its length.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from continuo.engine import BadRequest
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.events import RateLimitKind, RateLimitStatus
from continuo.realtime.protocol.response import Usage

MonotonicClock = Callable[[], float]
"""Returns the time in seconds."""
FaultPredicate = Callable[[BaseException], bool]
CHARS_PER_TOKEN = 4
"""Estimated characters per token, for text whose tokens were not counted."""


class TokenBucket:
    def __init__(self, capacity: int, clock: MonotonicClock) -> None:
        self.capacity = capacity
        self._clock = clock
        self._available = float(capacity)
        self._updated_s = clock()

    @property
    def available(self) -> float:
        """Amount in the bucket now; negative if it is in debt."""
        now_s = self._clock()
        refill = (now_s - self._updated_s) * self.capacity / 60
        self._available = min(float(self.capacity), self._available + refill)
        self._updated_s = now_s
        return self._available

    def take(self, amount: float) -> None:
        self._available = self.available - amount

    def wait_s(self, amount: float) -> float:
        """Seconds until the bucket holds `amount`."""
        return max(0.0, (amount - self.available) * 60 / self.capacity)


class TenantRateLimits:
    """Token buckets of one tenant."""

    def __init__(self, limits: Limits, clock: MonotonicClock) -> None:
        per_minute: dict[RateLimitKind, int] = {
            "requests": limits.requests_per_minute,
            "tokens": limits.tokens_per_minute,
        }
        self._buckets: dict[RateLimitKind, TokenBucket] = {
            name: TokenBucket(limit, clock) for name, limit in per_minute.items() if limit
        }
        self._off_loop_chars = limits.off_loop_chars_min

    @contextmanager
    def charge_request(self, is_fault: FaultPredicate | None = None) -> Generator[None]:
        """Charge one request, and refund it if the enclosed block, which begins a response, fails
        because of a fault of the server. `is_fault` returns whether an exception is such a fault
        (default: `is_server_fault`). Raises Refusal if a bucket holds less than 1."""
        for name in self._buckets:
            self._require_available(name)
        self._take("requests", 1)
        try:
            yield
        except BaseException as error:
            if (is_fault or is_server_fault)(error):
                self._take("requests", -1)
            raise

    @contextmanager
    def charge_text(
        self, chars: int, tokens_max: int, is_fault: FaultPredicate | None = None
    ) -> Generator[None]:
        """Context manager for the tokenization of a text of `chars` characters. If the block raises
        a refusal or is cancelled, charges an estimate from the length of the text, at most
        `tokens_max` tokens. Charges nothing if the block succeeds, or fails because of a fault of
        the server (`is_fault`, as in `charge_request`). Raises Refusal if the text is too long for
        the event loop (as in TokenizerThreads) and the tokens bucket holds less than 1."""
        if chars > self._off_loop_chars and "tokens" in self._buckets:
            self._require_available("tokens")
        try:
            yield
        except BaseException as error:
            if not (is_fault or is_server_fault)(error):
                self.charge_tokens(min(chars // CHARS_PER_TOKEN, tokens_max))
            raise

    def charge_tokens(self, tokens: int) -> None:
        """Charge tokens that were computed outside of a response, such as those of new
        instructions."""
        self._take("tokens", tokens)

    def charge_usage(self, usage: Usage | None) -> None:
        """Charge the tokens of a response; those found in KV are free."""
        if usage is not None:
            computed = usage.input_tokens - usage.cached_tokens + usage.output_tokens
            self._take("tokens", computed)

    def levels(self) -> list[RateLimitStatus]:
        """Return the level of each bucket. Limits of 0 have no bucket."""
        return [
            RateLimitStatus(
                name=name,
                limit_per_minute=bucket.capacity,
                remaining=max(0, int(bucket.available)),
                reset_s=bucket.wait_s(bucket.capacity),
            )
            for name, bucket in self._buckets.items()
        ]

    def _require_available(self, name: RateLimitKind) -> None:
        """Require at least 1 in the bucket. Raises Refusal."""
        bucket = self._buckets[name]
        wait_s = bucket.wait_s(1)
        if wait_s > 0:
            raise _limit_exceeded(name, bucket.capacity, wait_s)

    def _take(self, name: RateLimitKind, amount: float) -> None:
        if name in self._buckets:
            self._buckets[name].take(amount)


class RateLimits:
    """Rate limits of all tenants of this process."""

    def __init__(
        self, limits: Limits | None = None, clock: MonotonicClock = time.monotonic
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._tenants: dict[str, TenantRateLimits] = {}

    def for_tenant(self, tenant: str) -> TenantRateLimits:
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantRateLimits(self._limits, self._clock)
        return self._tenants[tenant]


def is_server_fault(error: BaseException) -> bool:
    """Whether a request failed because of a fault of the server, not of its client."""
    if isinstance(error, Refusal):
        return error.kind == "server_error"
    return isinstance(error, Exception) and not isinstance(error, BadRequest)


def _limit_exceeded(name: RateLimitKind, limit: int, wait_s: float) -> Refusal:
    return Refusal(
        f"The limit of {limit:,} {name} a minute is reached. Try again in {wait_s:.1f} s.",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )

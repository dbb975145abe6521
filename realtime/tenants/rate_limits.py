"""Rate limits of a tenant: token buckets for responses and tokens per minute. Pure.

A request is charged when its response begins. The charge is refunded only after a fault of the
server, not after a fault or a disconnect of the client. Tokens are charged when the response has
ended. That may put the bucket into debt (a negative level), and no response begins until refills
have paid it. Text that was tokenized for a request that failed is charged by its length.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from continuo.engine import BadRequest
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.events import RateLimitKind, RateLimitStatus
from continuo.realtime.protocol.response import Usage
from continuo.realtime.store import TenantUsage
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.token_bucket import MonotonicClock, TokenBucket

FaultPredicate = Callable[[BaseException], bool]
CHARS_PER_TOKEN = 4
"""Estimated characters per token, for text whose tokens were not counted."""


class TenantRateLimits:
    """Token buckets of one tenant."""

    def __init__(self, ledger: TenantLedger, limits: Limits, clock: MonotonicClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._buckets: dict[RateLimitKind, TokenBucket] = {}
        self._off_loop_chars = limits.off_loop_chars_min
        self._usage = TenantUsage()
        self.set_limits(limits.requests_per_minute, limits.tokens_per_minute)

    def set_limits(self, requests_per_minute: int, tokens_per_minute: int) -> None:
        """Change the limits; what was charged stays charged. 0: no limit."""
        per_minute: dict[RateLimitKind, int] = {
            "requests": requests_per_minute,
            "tokens": tokens_per_minute,
        }
        for name, limit in per_minute.items():
            if not limit:
                self._buckets.pop(name, None)
            elif name in self._buckets:
                self._buckets[name].resize(limit)
            else:
                self._buckets[name] = TokenBucket(limit, self._clock)

    def buckets(self) -> Iterable[tuple[RateLimitKind, TokenBucket]]:
        return self._buckets.items()

    def take_usage(self) -> TenantUsage:
        """Return the usage since the last call."""
        usage, self._usage = self._usage, TenantUsage()
        return usage + TenantUsage(refused=self._ledger.take_refusals())

    def restore_usage(self, usage: TenantUsage) -> None:
        """Undo `take_usage`, because the usage could not be recorded."""
        self._usage += usage

    @contextmanager
    def charge_request(self, is_fault: FaultPredicate | None = None) -> Generator[None]:
        """Charge one request, and refund it if the enclosed block, which begins a response, fails
        because of a fault of the server. `is_fault` returns whether an exception is such a fault
        (default: `is_server_fault`). Raises Refusal if a bucket holds less than 1."""
        self._ledger.check_room()
        for name in self._buckets:
            self._require_available(name)
        self._take("requests", 1)
        self._usage += TenantUsage(requests=1)
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
        if chars:
            self._ledger.check_room()
        if chars > self._off_loop_chars and "tokens" in self._buckets:
            self._require_available("tokens")
        try:
            yield
        except BaseException as error:
            if not (is_fault or is_server_fault)(error):
                self.charge_tokens(min(chars // CHARS_PER_TOKEN, tokens_max))
            raise

    def has_tokens(self, promised: int) -> bool:
        """Return whether more than `promised` tokens may be computed now."""
        bucket = self._buckets.get("tokens")
        return bucket is None or bucket.available > promised

    def charge_tokens(self, tokens: int) -> None:
        """Charge tokens that were computed outside of a response, such as those of new
        instructions."""
        self._take("tokens", tokens)
        self._usage += TenantUsage(computed_tokens=tokens)

    def charge_usage(self, usage: Usage | None) -> None:
        """Charge the tokens that were computed for a response, ahead of it too."""
        if usage is not None:
            self._take("tokens", usage.computed_tokens + usage.output_tokens)
            self._usage += TenantUsage(
                computed_tokens=usage.computed_tokens,
                cached_tokens=usage.cached_tokens,
                generated_tokens=usage.output_tokens,
            )

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
            raise self._ledger.refuse_rate(name, bucket.capacity, wait_s)

    def _take(self, name: RateLimitKind, amount: float) -> None:
        if name in self._buckets:
            self._buckets[name].take(amount)


def is_server_fault(error: BaseException) -> bool:
    """Whether a request failed because of a fault of the server, not of its client."""
    if isinstance(error, Refusal):
        return error.kind == "server_error"
    return isinstance(error, Exception) and not isinstance(error, BadRequest)

"""The ledger of one tenant: what it uses at this gateway now, against its limits.

The owner of whatever is held for a tenant charges it here and releases it at its end. The ledger
alone refuses: it names the limit, its amount, what is used of it and, where that is known, when to
try again. It counts what it has refused, for `GET /v1/stats` and the usage of the tenant.

    limit                                  charged or measured by         refused
    connections_max                        OpenConnections                a connection
    sessions_max                           the store; TokenSessions       a session
    operations_per_second                  connections, HTTP routes       a client event, a request
    running_, waiting_responses_max        TurnSlots                      a response that would wait
    requests_, tokens_per_minute           TenantRateLimits               a response, a long text
    stored_bytes_max                       Tenants, every few seconds     a response, a text
    held_bytes_max                         see `HeldBytes`                a connection, and these
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, get_args

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TenantLimits
from continuo.realtime.protocol.events import RateLimitKind
from continuo.realtime.store import CountsElsewhere
from continuo.realtime.tenants.time_bucket import TimeBucket
from continuo.realtime.tenants.token_bucket import MonotonicClock, TokenBucket

RETRY_AFTER_S = 5.0
"""Suggested wait before a retry, when a connection or session may end at any time."""
TURN_RETRY_AFTER_S = 1.0
"""Suggested wait before a retry, when a turn may end at any time."""
OPERATIONS_BURST_S = 10
"""Operations of so many seconds may arrive at once."""
LIGHT_SHARE_MAX = 0.5
"""Share of the event loop that a tenant's light connections may use together, on average."""
LIGHT_S_MAX = 0.05
"""Time in seconds that they may use at once beyond that share."""

HeldBytes = Literal["input", "output", "idempotency_keys"]
"""Kinds of bytes that a gateway holds for a tenant:

input               received, and not processed: messages over 4 KiB, bodies, queued frames
output              Realtime events that wait for a client to read
idempotency_keys    the recorded requests of the sessions in memory
"""


class TenantLedger:
    def __init__(self, tenant: str, clock: MonotonicClock = time.monotonic) -> None:
        self.tenant = tenant
        self.limits = TenantLimits()
        self._clock = clock
        self.operations = 0
        """Operations since the start of the process, without those that were refused."""
        self._bucket: TokenBucket | None = None
        """Operations that may arrive now; None without a limit."""
        self.light_time = TimeBucket(LIGHT_SHARE_MAX, LIGHT_S_MAX, clock)
        """Time on the event loop that connections may take which each use little of it: their input
        waits for none of other connections."""
        self.connections = 0
        """WebSockets and streamed HTTP responses at this gateway."""
        self.elsewhere = CountsElsewhere()
        """Connections and turns at the other gateways, as of the last exchange."""
        self.held_bytes: dict[HeldBytes, int] = dict.fromkeys(get_args(HeldBytes), 0)
        """Bytes at this gateway."""
        self.stored_bytes = 0
        """Bytes that the store holds for the tenant, as measured last; measured only with a limit
        on them."""
        self.refused: dict[str, int] = {}
        """Refusals since the start of the process, by the limit that was reached."""
        self._unrecorded_refusals = 0

    def set_limits(self, limits: TenantLimits) -> None:
        """Change the limits; what is charged stays charged."""
        self.limits, capacity = limits, limits.operations_per_second * OPERATIONS_BURST_S
        if not capacity:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(capacity, self._clock, OPERATIONS_BURST_S)
        else:
            self._bucket.resize(capacity)

    def hold(self, kind: HeldBytes, size_bytes: int) -> None:
        """Charge bytes; a negative size releases them."""
        self.held_bytes[kind] += size_bytes

    def take_refusals(self) -> int:
        """Return the number of refusals since the last call."""
        count, self._unrecorded_refusals = self._unrecorded_refusals, 0
        return count

    # ------------------------------------------------------------ admission

    def admit_operation(self) -> None:
        """Charge an operation: a client event, an HTTP request, or the opening of a session. Raises
        Refusal."""
        bucket = self._bucket
        if bucket is not None and not bucket.take_one():
            wait_s = bucket.wait_s(1)
            raise self._refuse(
                "operations_per_second",
                f"Tenant '{self.tenant}' has used its operations of {OPERATIONS_BURST_S} seconds; "
                f"the limit is {self.limits.operations_per_second:,} a second. Try again in "
                f"{wait_s:.1f} s.",
                wait_s,
            )
        self.operations += 1

    @contextmanager
    def connected(self) -> Generator[None]:
        """Context manager of one connection. Raises Refusal if the tenant has too many, or holds as
        many bytes as it may."""
        self._check_held()
        limit = self.limits.connections_max
        count = self.connections + self.elsewhere.connections
        if limit and count >= limit:
            raise self._refuse(
                "connections_max",
                f"{count:,} connections of tenant '{self.tenant}' are open; the limit is "
                f"{limit:,}. Close one, or try again in {RETRY_AFTER_S:g} s.",
                RETRY_AFTER_S,
            )
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    def check_session_count(self, count: int) -> None:
        """Raise Refusal if `count` sessions are as many as the tenant may have."""
        limit = self.limits.sessions_max
        if limit and count >= limit:
            raise self._refuse(
                "sessions_max",
                f"Tenant '{self.tenant}' has {count:,} sessions; the limit is {limit:,}. Close or "
                "delete one, or try again when one has expired.",
                RETRY_AFTER_S,
            )

    def check_room(self) -> None:
        """Raise Refusal if this gateway or the store holds as much of the tenant as it may."""
        self._check_held()
        limit = self.limits.stored_bytes_max
        if limit and self.stored_bytes > limit:
            raise self._refuse(
                "stored_bytes_max",
                f"The store holds {self.stored_bytes:,} bytes of this tenant; the limit is "
                f"{limit:,}. Delete sessions or responses, or wait until some have expired.",
                code="insufficient_quota",
            )

    def _check_held(self) -> None:
        limit = self.limits.held_bytes_max
        if limit and (held := sum(self.held_bytes.values())) > limit:
            raise self._refuse(
                "held_bytes_max",
                f"This gateway holds {held:,} bytes of tenant '{self.tenant}' that wait to be "
                f"processed or sent, or are of its sessions; the limit is {limit:,}. Read what was "
                f"sent, close sessions, or try again in {RETRY_AFTER_S:g} s.",
                RETRY_AFTER_S,
            )

    # ------------------------------------------------------------ refusals of other parts

    def refuse_turn(self, running: int, waiting: int) -> Refusal:
        """Refuse a response while `running` are generated and `waiting` wait, everywhere."""
        limits = self.limits
        return self._refuse(
            "waiting_responses_max",
            f"Tenant '{self.tenant}' has {running} responses in generation and {waiting} waiting; "
            f"the limits are {limits.running_responses_max} and {limits.waiting_responses_max}. "
            "Try again when one of them has ended.",
            TURN_RETRY_AFTER_S,
        )

    def refuse_rate(self, kind: RateLimitKind, amount: int, wait_s: float) -> Refusal:
        """Refuse what a bucket of `amount` a minute holds nothing for, for `wait_s`."""
        return self._refuse(
            f"{kind}_per_minute",
            f"The limit of {amount:,} {kind} a minute is reached. Try again in {wait_s:.1f} s.",
            wait_s,
        )

    def _refuse(
        self,
        limit: str,
        message: str,
        retry_after_s: float | None = None,
        code: str = "rate_limit_exceeded",
    ) -> Refusal:
        """Build the refusal of what would exceed a limit, and count it."""
        self.refused[limit] = self.refused.get(limit, 0) + 1
        self._unrecorded_refusals += 1
        return Refusal(message, code=code, retry_after_s=retry_after_s)

"""The tenants of this process, and what they exchange with the other gateways through the store.

Every EXCHANGE_INTERVAL_S each active tenant's token buckets are charged in the store with what was
taken from them here, and get the level that all gateways have left. Between two exchanges each
gateway grants what it knows of; what they grant together above a limit puts the common bucket into
debt. So the limits per minute hold in the mean, whatever the number of gateways.

In the same exchange each gateway publishes what tenants have there now, connections and turns, and
learns what they have at the others; it admits what fits beside that. A gateway follows a tenant
from its first connection or turn there, before which it asks the store. What is published counts
for COUNTS_LEASE_S, so that a killed gateway holds nothing. Without the store, each gateway applies
the limits alone.
"""

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager

from continuo.realtime.limits import Limits, TenantLimits
from continuo.realtime.protocol.events import RateLimitKind
from continuo.realtime.store import (
    BucketCharge,
    CountsElsewhere,
    Store,
    StoreError,
    TenantCounts,
    TenantUsage,
    keys,
)
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.rate_limits import TenantRateLimits
from continuo.realtime.tenants.token_bucket import MonotonicClock, TokenBucket
from continuo.realtime.tenants.turn_slots import TurnSlots

log = logging.getLogger(__name__)

EXCHANGE_INTERVAL_S = 0.25
"""Interval at which token buckets and usage are exchanged with the store."""
COUNTS_LEASE_S = 2.0
"""How long what a gateway has published counts at the others."""
COUNTS_FOLLOWED_S = 60.0
"""How long a gateway follows what a tenant has elsewhere, after the tenant had something here."""
MEASURE_INTERVAL_S = 5.0
"""Interval at which the stored bytes of a tenant with `stored_bytes_max` are measured."""
DELETIONS_INTERVAL_S = 1.0
"""Interval at which deleted tenants are looked up."""
DELETIONS_MISSED_S_MAX = 3600.0
"""Longest outage of the store after which a deletion is still noticed."""

ClaimedLimits = Mapping[str, int | float]
"""Limits that a token claims for its tenant, by field of `TenantLimits`."""
LimitsSource = Callable[[str, ClaimedLimits], TenantLimits]
"""Returns the limits of a tenant, given those that its token claims."""


class Tenant:
    """A tenant: its ledger, and the parts that charge it."""

    def __init__(self, name: str, limits: Limits, clock: MonotonicClock) -> None:
        self.name = name
        self.ledger = TenantLedger(name, clock)
        self.rate_limits = TenantRateLimits(self.ledger, limits, clock)
        self.turns = TurnSlots(self.ledger)
        self.following = asyncio.Lock()
        """Held while the store is asked for what the tenant has at other gateways."""
        self.opening = asyncio.Lock()
        """Held from the check of `sessions_max` until the session is created."""

    @property
    def limits(self) -> TenantLimits:
        return self.ledger.limits

    def set_limits(self, limits: TenantLimits) -> None:
        self.rate_limits.set_limits(limits.requests_per_minute, limits.tokens_per_minute)
        self.turns.set_limits(limits)

    def retained_s(self, longest_s: float) -> float:
        """Return how long a stored response or a parked session is kept. `longest_s`: for a tenant
        without a limit on that."""
        return min(longest_s, self.limits.retention_s or longest_s)

    @property
    def counts(self) -> TenantCounts:
        """Connections and turns at this gateway now."""
        turns = self.turns
        return TenantCounts(
            self.name, self.ledger.connections, turns.running_count, turns.waiting_count
        )


class Tenants:
    """Each tenant of this process by name, with its limits and what it uses.

    Owns the Tenant objects and the exchange with the store. Called by whatever admits work for a
    tenant: the registry, sessions, the Responses service and token turns, on one event loop.
    Always: a name has one Tenant as long as the process runs, so that its counts are complete; and
    without the store the limits hold for this gateway alone.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        limits_of: LimitsSource | None = None,
        clock: MonotonicClock = time.monotonic,
    ) -> None:
        """`limits`: the limits per minute of every tenant, if `limits_of` is not given."""
        self._limits = limits or Limits()
        self._clock = clock
        self._limits_of = limits_of or self._default_limits
        self._on_deleted: Callable[[str], None] = lambda _tenant: None
        self._tenants: dict[str, Tenant] = {}
        self._claims: dict[str, tuple[ClaimedLimits, float]] = {}
        """Limits that the newest token of each tenant claims, and when it was issued."""
        self._gateway_id = uuid.uuid4().hex
        self._store: Store | None = None
        """The store that is shared with other gateways, while exchanging."""
        self._counted_s: dict[str, float] = {}
        """When each tenant with limits on what it has at a time had something here last."""
        self._measured_s: dict[str, float] = {}
        self._deletions: dict[str, int] = {}
        """When each tenant was deleted last, by the store's clock in ms; without those never
        deleted."""
        self._looked_up_s = -math.inf

    def __iter__(self) -> "Generator[Tenant]":
        yield from list(self._tenants.values())

    def of(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, self._limits, self._clock)
            tenant.set_limits(self._limits_of(name, {}))
        return tenant

    def claim_limits(self, name: str, claimed: ClaimedLimits, issued_s: float) -> None:
        """Use the limits that a token claims for its tenant, unless a token that was issued later
        has claimed others."""
        tenant, (_, before_s) = self.of(name), self._claims.get(name, ({}, -math.inf))
        if issued_s >= before_s:
            self._claims[name] = (claimed, issued_s)
            tenant.set_limits(self._limits_of(name, claimed))

    def replace_limits(self, limits_of: LimitsSource) -> None:
        """Use other limits from now on. Work that was accepted is not cancelled."""
        self._limits_of = limits_of
        for tenant in self:
            claimed, _ = self._claims.get(tenant.name, ({}, 0.0))
            tenant.set_limits(limits_of(tenant.name, claimed))

    def _default_limits(self, _name: str, _claimed: ClaimedLimits) -> TenantLimits:
        return TenantLimits(
            requests_per_minute=self._limits.requests_per_minute,
            tokens_per_minute=self._limits.tokens_per_minute,
            operations_per_second=self._limits.operations_per_second,
            held_bytes_max=self._limits.held_bytes_max,
        )

    # ------------------------------------------------------------ exchange with the store

    @asynccontextmanager
    async def exchanging(
        self, store: Store, on_deleted: Callable[[str], None] = lambda _tenant: None
    ) -> AsyncGenerator[None]:
        """Context manager of the exchange with the store; records the rest of the usage at its
        end. `on_deleted`: called with each tenant that is deleted from the store meanwhile."""
        with contextlib.suppress(StoreError):
            self._deletions = await store.tenants.list_deletions(keys.TENANT_EXPIRY_S)
        self._on_deleted = on_deleted
        self._store = store if store.is_shared else None
        task = asyncio.create_task(self._exchange_forever(store), name="tenants")
        try:
            yield
        finally:
            task.cancel()
            self._store = None
            with contextlib.suppress(StoreError):
                await self._withdraw_counts(store)
                await self._record_usage(store)

    async def _exchange_forever(self, store: Store) -> None:
        exchanged_s = self._clock()
        while True:
            await asyncio.sleep(EXCHANGE_INTERVAL_S)
            try:
                await self.exchange(store)
                exchanged_s = self._clock()
            except StoreError as error:
                log.debug("tenants were not exchanged with the store: %s", error)
                if self._clock() > exchanged_s + COUNTS_LEASE_S:
                    self._forget_elsewhere()

    async def exchange(self, store: Store) -> None:
        """Exchange token buckets, record usage, and measure stored bytes. Raises StoreError."""
        if store.is_shared:
            await self._exchange_buckets(store)
            await self._exchange_counts(store)
        await self._record_usage(store)
        await self._measure(store)
        await self._find_deleted(store)

    def deleted_ms(self, tenant: str) -> int:
        """Time of the last deletion of a tenant, by the store's clock in ms; 0 if never."""
        return self._deletions.get(tenant, 0)

    async def _find_deleted(self, store: Store) -> None:
        if self._clock() < self._looked_up_s + DELETIONS_INTERVAL_S:
            return
        found = await store.tenants.list_deletions(DELETIONS_MISSED_S_MAX)
        self._looked_up_s = self._clock()
        for name, at_ms in found.items():
            if at_ms > self.deleted_ms(name):
                self._deletions[name] = at_ms
                self._on_deleted(name)

    async def _exchange_buckets(self, store: Store) -> None:
        buckets: list[tuple[str, RateLimitKind, TokenBucket]] = [
            (tenant.name, kind, bucket)
            for tenant in self
            for kind, bucket in tenant.rate_limits.buckets()
            if bucket.is_active
        ]
        if not buckets:
            return
        charges = [
            BucketCharge(name, kind, bucket.capacity, bucket.begin_exchange())
            for name, kind, bucket in buckets
        ]
        try:
            levels = await store.tenants.charge_buckets(charges)
        except StoreError:
            for charge, (_, _, bucket) in zip(charges, buckets, strict=True):
                bucket.restore_exchange(charge.amount)
            raise
        for level, (_, _, bucket) in zip(levels, buckets, strict=True):
            bucket.end_exchange(level)

    async def follow(self, name: str) -> None:
        """Learn what a tenant has at the other gateways, before it gets something here. Without the
        store, nothing is known of the others. Returns at once if the tenant is followed already."""
        tenant, store = self.of(name), self._store
        if store is None or name in self._counted_s or not tenant.limits.has_counts:
            return
        async with tenant.following:
            if name in self._counted_s:
                return
            try:
                (elsewhere,) = await store.tenants.exchange_counts(
                    self._gateway_id, [tenant.counts], COUNTS_LEASE_S
                )
                tenant.turns.set_elsewhere(elsewhere)
            except StoreError as error:
                log.debug("tenant %r was not counted: %s", name, error)
            self._counted_s[name] = self._clock()

    async def _exchange_counts(self, store: Store) -> None:
        now_s = self._clock()
        for tenant in self:
            if tenant.limits.has_counts and any(tenant.counts[1:]):
                self._counted_s[tenant.name] = now_s
        followed = [self.of(name) for name in self._counted_s]
        if not followed:
            return
        elsewhere = await store.tenants.exchange_counts(
            self._gateway_id, [tenant.counts for tenant in followed], COUNTS_LEASE_S
        )
        for tenant, counts in zip(followed, elsewhere, strict=True):
            is_over = now_s > self._counted_s[tenant.name] + COUNTS_FOLLOWED_S
            tenant.turns.set_elsewhere(CountsElsewhere() if is_over else counts)
            if is_over:
                del self._counted_s[tenant.name]

    def _forget_elsewhere(self) -> None:
        """Apply limits to this gateway alone, because the counts of the others are too old."""
        for name in self._counted_s:
            self.of(name).turns.set_elsewhere(CountsElsewhere())

    async def _withdraw_counts(self, store: Store) -> None:
        """Publish that tenants have nothing here any more."""
        nothing = [TenantCounts(name, 0, 0, 0) for name in self._counted_s]
        if store.is_shared and nothing:
            await store.tenants.exchange_counts(self._gateway_id, nothing, COUNTS_LEASE_S)

    async def _record_usage(self, store: Store) -> None:
        usage = {tenant.name: tenant.rate_limits.take_usage() for tenant in self}
        used = {name: one for name, one in usage.items() if one != TenantUsage()}
        if not used:
            return
        try:
            await store.tenants.add_usage(used)
        except StoreError:
            for name, one in used.items():
                self.of(name).rate_limits.restore_usage(one)
            raise

    async def _measure(self, store: Store) -> None:
        """Measure the stored bytes of each tenant that has a limit on them, at most every
        MEASURE_INTERVAL_S, and at most a twentieth of the time."""
        for tenant in self:
            began_s = self._clock()
            if not tenant.limits.stored_bytes_max or began_s < self._measured_s.get(tenant.name, 0):
                continue
            holdings = await store.tenants.measure(tenant.name)
            tenant.ledger.stored_bytes = holdings.stored_bytes
            took_s = self._clock() - began_s
            self._measured_s[tenant.name] = self._clock() + max(MEASURE_INTERVAL_S, 20 * took_s)

"""Store of all that must survive a disconnect, a deploy or a crash: sessions, their logs, and
responses that are being generated.

`base` defines the interface, `sqlite` and `redis` implement it, `open_store` selects one by its
URL. Independent of wire protocols and engine: settings, items and events are bytes here.
"""

from continuo.realtime.store.administration import (
    RestoreResult,
    StoreAdministration,
    back_up,
    check_store,
    open_administration,
    restore,
)
from continuo.realtime.store.backup_file import BackupEnd
from continuo.realtime.store.base import (
    DuplicateWrite,
    IdempotentRequest,
    LogEnd,
    NewSession,
    ResponseCheckpoint,
    RunningResponse,
    SessionLease,
    SessionMetadata,
    Snapshot,
    Store,
    StoredEvents,
    StoredResponse,
    SweepResult,
    TokenBatch,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.errors import (
    IdempotencyConflict,
    LeaseLost,
    ResponseNotFound,
    SessionDataLost,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
    UnknownLayout,
)
from continuo.realtime.store.expiry import sweep_overdue
from continuo.realtime.store.factory import (
    Durability,
    default_store_url,
    is_redis_url,
    open_store,
    redact_password,
)
from continuo.realtime.store.stats import StoreStats, TenantStats, VacuumResult
from continuo.realtime.store.tenant_deletion import delete_tenant
from continuo.realtime.store.tenants import (
    BucketCharge,
    CountsElsewhere,
    TenantCounts,
    TenantHoldings,
    TenantStore,
    TenantUsage,
)

__all__ = [
    "BackupEnd",
    "BucketCharge",
    "CountsElsewhere",
    "DuplicateWrite",
    "Durability",
    "IdempotencyConflict",
    "IdempotentRequest",
    "LeaseLost",
    "LogEnd",
    "NewSession",
    "ResponseCheckpoint",
    "ResponseNotFound",
    "RestoreResult",
    "RunningResponse",
    "SessionDataLost",
    "SessionEnded",
    "SessionExists",
    "SessionLease",
    "SessionMetadata",
    "SessionNotFound",
    "Snapshot",
    "Store",
    "StoreAdministration",
    "StoreError",
    "StoreReplaced",
    "StoreStats",
    "StoreUnavailable",
    "StoreUnusable",
    "StoredEvents",
    "StoredResponse",
    "SweepResult",
    "TenantCounts",
    "TenantHoldings",
    "TenantStats",
    "TenantStore",
    "TenantUsage",
    "TokenBatch",
    "UnknownLayout",
    "VacuumResult",
    "WriteBatch",
    "WriteResult",
    "back_up",
    "check_store",
    "default_store_url",
    "delete_tenant",
    "is_redis_url",
    "open_administration",
    "open_store",
    "redact_password",
    "restore",
    "sweep_overdue",
]

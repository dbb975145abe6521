"""Store of all that must survive a disconnect, a deploy or a crash: sessions, their logs, and
responses that are being generated.

`base` defines the interface, `sqlite` and `redis` implement it, `open_store` selects one by its
URL. Independent of wire protocols and engine: settings, items and events are bytes here.
"""

from continuo.realtime.store.base import (
    DuplicateWrite,
    IdempotentRequest,
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
    NewerLayout,
    ResponseNotFound,
    SessionDataLost,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
)
from continuo.realtime.store.expiry import sweep_overdue
from continuo.realtime.store.factory import Durability, default_store_url, is_redis_url, open_store

__all__ = [
    "DuplicateWrite",
    "Durability",
    "IdempotencyConflict",
    "IdempotentRequest",
    "LeaseLost",
    "NewSession",
    "NewerLayout",
    "ResponseCheckpoint",
    "ResponseNotFound",
    "RunningResponse",
    "SessionDataLost",
    "SessionEnded",
    "SessionExists",
    "SessionLease",
    "SessionMetadata",
    "SessionNotFound",
    "Snapshot",
    "Store",
    "StoreError",
    "StoreReplaced",
    "StoreUnavailable",
    "StoreUnusable",
    "StoredEvents",
    "StoredResponse",
    "SweepResult",
    "TokenBatch",
    "WriteBatch",
    "WriteResult",
    "default_store_url",
    "is_redis_url",
    "open_store",
    "sweep_overdue",
]

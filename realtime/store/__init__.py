"""What must survive a disconnect, a deploy or a crash: sessions, their logs, answers being made.

`base` says what a store does, `sqlite` and `redis` do it, `open_store` picks one by its URL. Knows
neither wire nor engine: settings, items and events are bytes here.
"""

from continuo.realtime.store.base import (
    Answer,
    Begun,
    Card,
    Change,
    Entry,
    Events,
    Kept,
    Lease,
    NewSession,
    Once,
    Repeated,
    Snapshot,
    Spoken,
    Store,
    Swept,
    Written,
)
from continuo.realtime.store.errors import (
    Conflict,
    SessionBehind,
    SessionEnded,
    SessionExists,
    StaleFence,
    StoreError,
    StoreLost,
    StoreRefused,
    StoreUnavailable,
    UnknownAnswer,
    UnknownSession,
)
from continuo.realtime.store.expiry import sweep_overdue
from continuo.realtime.store.factory import Durability, default_url, open_store

__all__ = [
    "Answer",
    "Begun",
    "Card",
    "Change",
    "Conflict",
    "Durability",
    "Entry",
    "Events",
    "Kept",
    "Lease",
    "NewSession",
    "Once",
    "Repeated",
    "SessionBehind",
    "SessionEnded",
    "SessionExists",
    "Snapshot",
    "Spoken",
    "StaleFence",
    "Store",
    "StoreError",
    "StoreLost",
    "StoreRefused",
    "StoreUnavailable",
    "Swept",
    "UnknownAnswer",
    "UnknownSession",
    "Written",
    "default_url",
    "open_store",
    "sweep_overdue",
]

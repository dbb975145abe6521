"""Short helpers that make and write the records that tests of the store use."""

import secrets
from typing import Any

from continuo.realtime.store import (
    NewSession,
    ResponseCheckpoint,
    SessionLease,
    Store,
    WriteBatch,
    WriteResult,
)


def new_session(**changes: Any) -> NewSession:
    """Make a new session with a unique id."""
    fields: dict[str, Any] = {
        "id": "sess_" + secrets.token_hex(10),
        "owner": "gate-1",
        "tenant": "acme",
        "ttl_s": 3600,
        **changes,
    }
    return NewSession(**fields)


def make_entry(*ids: int) -> bytes:
    return f"item with the ids {ids}".encode()


def response_checkpoint(name: str = "resp_1") -> ResponseCheckpoint:
    return ResponseCheckpoint(id=name, seed=7, prompt=3, entry=1, body=b"how")


async def append_entries(
    store: Store, lease: SessionLease, at: int, *entries: bytes
) -> WriteResult:
    result = await store.write(lease, WriteBatch(kept_entries=at, entries=entries))
    assert isinstance(result, WriteResult)
    return result

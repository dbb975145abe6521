"""Every key, expiry and bound of the store, with its unit.

All keys of a session carry its id in braces, and those of a tenant its name. The script that
creates or removes a session also changes the set of its tenant's sessions. `deadlines` is an
index: a session is added to it before the session is created, and the deadline in the session's own
hash is checked before the session is removed.
"""

from typing import NamedTuple

LAYOUT = 3
"""Version of the layout of stored values. In Redis, each session and stored response has its own; a
SQLite file has one for all, and migrations from older ones. What the `meta` of a session says about
lease and deadline is the same in every layout, so that any version of a gateway can remove the
session."""

TIMEOUT_S = 0.9
"""Time limit of one call of the store, waiting included; after it the call raises
StoreUnavailable."""
CONNECT_TIMEOUT_S = 0.5
CONNECTIONS_MAX = 32
"""Maximum connections of one gateway to one Redis; further calls wait, within their time limit."""

IDEMPOTENCY_BYTES_MAX = 48 * 1024
"""Maximum size of a session's idempotency records: over 1,000 with results of 25 bytes. Above it,
the oldest eighth is evicted."""
IDEMPOTENCY_RESULT_BYTES_MAX = 255
IDEMPOTENCY_OVERHEAD_BYTES = 17
"""Size at which an idempotency record counts, without its result, in every store, so that all evict
alike."""
EVENTS_MAX = 256
"""Maximum number of events of a session that are kept for replay; the oldest are deleted."""
EVENTS_BYTES_MAX = 1700
"""Maximum total size, in bytes, of the events of a session that are kept for replay;
the oldest are deleted."""
TOMBSTONE_S = 3600.0
"""How long the tombstone of a session is kept, so that an earlier owner that was suspended does not
create the session again."""
SWEEP_MAX = 500
"""Maximum number of sessions examined in one sweep."""

LAYOUT_KEY = "continuo:layout"
"""string: the layout of the newest version that has opened this Redis. Never expires."""
EPOCH_KEY = "continuo:epoch"
"""string: the epoch of the store, 128 random bits in hex. Never expires."""
DEADLINES_KEY = "continuo:deadlines"
"""sorted set: session ids, scored by the time from which the session may be removed (ms of Redis's
clock). Never expires."""

SESSION_EXPIRY_NET_S = 3600.0
"""How long after its deadline Redis itself deletes a session, if no gateway has removed it."""
TENANT_EXPIRY_S = 90 * 86_400.0
"""TTL of what is kept about a tenant, renewed by each change; longer than any session lives."""
TENANTS_DELETED_KEY = "continuo:tenants:deleted"
"""sorted set: tenants whose records were deleted, scored by the time of that (ms of Redis's clock).
Expires after TENANT_EXPIRY_S."""

PROBE_KEYS = tuple(
    f"continuo:{{probe}}:{kind}" for kind in ("string", "hash", "list", "sorted", "set")
)
"""Keys of health probes, one for each type of value. A health probe writes and deletes them in one
atomic step."""

ENGINES_KEY = "continuo:engines"
"""sorted set: HOST:PORT of the announced engines, scored by when each announcement expires (ms of
Redis's clock). Never expires itself."""
ENGINE_EXPIRY_MS = 5_000
"""TTL of an engine's announcement."""


class TenantKeys(NamedTuple):
    """Keys of one tenant; each expires TENANT_EXPIRY_S after its last change, `counts` sooner."""

    sessions: str
    """set: ids of the tenant's sessions."""
    responses: str
    """sorted set: ids of the tenant's stored responses, scored by the time of their expiry (ms of
    Redis's clock)."""
    usage: str
    """hash: fields of TenantUsage."""
    buckets: str
    """hash, where KIND is that of a token bucket: KIND → its level, KIND:at → when that was (ms of
    Redis's clock)."""
    counts: str
    """hash: id of a gateway → what the tenant has there now: connections, running turns, waiting
    turns, and until when that counts (ms of Redis's clock). Expires with the last of them."""


def tenant_keys(tenant: str) -> TenantKeys:
    return TenantKeys(*(f"continuo:tenant:{{{tenant}}}:{name}" for name in TenantKeys._fields))


class SessionKeys(NamedTuple):
    """Keys of one session. A sweep removes them after the session's deadline; each also has a TTL,
    until SESSION_EXPIRY_NET_S after the deadline."""

    meta: str
    """hash: owner, fence, epoch, tenant, secret, parked, created, deadline, layout, events (number
    of the next event), weight (bytes of the events kept), requests (number of the next idempotency
    record), request_bytes; recreated (the fence before the store had lost the session), if it was
    written again. A tombstone has: owner (''), fence, deadline."""
    state: str
    """string: the state of the session."""
    log: str
    """list: the entries of the log."""
    running: str
    """hash, where ID is that of a response being generated: ID → ResponseCheckpoint; ID# → number
    of token ids so far; ID:FIRST → token ids from offset FIRST on, 4 bytes each."""
    idempotency_keys: str
    """hash of the idempotency records: digest of the key → number of the record, digest of the
    content, result (array in MessagePack)."""
    events: str
    """list: the events kept for replay."""


def session_keys(session: str) -> SessionKeys:
    return SessionKeys(*(f"continuo:{{{session}}}:{name}" for name in SessionKeys._fields))


def response_key(response_id: str) -> str:
    """Key of a string: a StoredResponse. Expires after the `ttl_s` of `put_response`."""
    return f"continuo:{{{response_id}}}:response"


def scan_pattern(name: str) -> str:
    """Pattern of the keys called `name` of all sessions or stored responses."""
    return f"continuo:{{*}}:{name}"


def id_in_key(key: str) -> str:
    """Return the id of the session or stored response that a key belongs to."""
    return key[key.index("{") + 1 : key.rindex("}")]


def engine_key(address: str) -> str:
    """Key of a string: the announcement of an engine, as JSON. Expires after ENGINE_EXPIRY_MS."""
    return f"continuo:engine:{address}"

"""Every key, expiry and bound of the store, with its unit.

All keys of a session carry its id in braces, so that they share one hash slot and one script may
touch them all. `epoch`, `deadlines` and what is said of engines stand alone. `deadlines` is an
index: a session is in it before it is made, and its own deadline is looked at before it is removed.
"""

from typing import NamedTuple

TIMEOUT_S = 0.9
"""One call, whatever it needs; then StoreUnavailable."""
CONNECT_TIMEOUT_S = 0.5
CONNECTIONS_MAX = 32
"""To one Redis, of one gateway; more calls wait their turn within their time."""

IDEMPOTENCY_BYTES_MAX = 48 * 1024
"""Of a session's idempotency window: over 1,000 keys with results of 25 bytes. Over it the oldest
eighth is forgotten."""
IDEMPOTENCY_RESULT_BYTES_MAX = 255
EVENTS_MAX = 256
"""Of a session, kept for replay; the oldest are dropped."""
EVENTS_BYTES_MAX = 960
TOMBSTONE_S = 3600.0
"""How long it is remembered that a session was ended, so that whoever had it before, and slept,
does not make it again."""
SWEEP_MAX = 500
"""Sessions looked at in one sweep."""

EPOCH_KEY = "continuo:epoch"
"""string: 128 random bits in hex. Never expires."""
DEADLINES_KEY = "continuo:deadlines"
"""sorted set: session id, scored by when it may be removed (ms of Redis's clock). Never expires."""

PROBE_KEYS = tuple(f"continuo:{{probe}}:{kind}" for kind in ("string", "hash", "list", "sorted"))
"""One of each kind, written and deleted in one step by a health probe: none of them lasts."""

ENGINES_KEY = "continuo:engines"
"""sorted set: HOST:PORT of the engines that are announced, scored by when each is forgotten (ms of
Redis's clock). Never expires."""
ENGINE_EXPIRY_MS = 5_000
"""After an engine was announced last."""


class SessionKeys(NamedTuple):
    """Never expire by themselves: a sweep removes them when the session's deadline is over."""

    meta: str
    """hash: owner, fence, epoch, tenant, secret, parked, created, deadline, events (the number of
    the next), weight (bytes of those kept). Of an ended session: owner (nobody: ''), fence,
    deadline."""
    state: str
    """string: packed."""
    log: str
    """list: packed entries."""
    running: str
    """hash: ID → Begun; ID# → ids so far; ID:FIRST → ids from FIRST on, 4 bytes each."""
    once: str
    """string: records of key (8 bytes), digest (8), length (1), result."""
    events: str
    """list: packed events."""


def session_keys(session: str) -> SessionKeys:
    return SessionKeys(*(f"continuo:{{{session}}}:{name}" for name in SessionKeys._fields))


def response_key(response_id: str) -> str:
    """string: a packed Kept. Expires as its keeper says."""
    return f"continuo:{{{response_id}}}:kept"


def engine_key(address: str) -> str:
    """string: what an engine says of itself, JSON. Expires when the engine is forgotten."""
    return f"continuo:engine:{address}"

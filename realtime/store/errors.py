"""Errors of a store. A call that raises one has changed nothing; after StoreUnavailable, whether it
has is unknown.

StoreError               base class, a RealtimeError
├── StoreUnavailable     no reply in time, or no writes accepted (full, read-only, locked, another
│   │                    password): try again; repeated calls take effect once
│   └── UnknownLayout    another version of Continuo has stored this: another gateway may read it
├── StoreReplaced        not the store that granted the lease: flushed, or replaced by an empty one
├── StoreUnusable        wrong eviction policy, password or durability. Raised at opening
├── SessionNotFound      no such session, or it has expired
├── SessionExists        a session with this id exists
├── LeaseLost            another gateway owns the session: stop writing it
│   └── SessionEnded     the session was deleted; no gateway will own it again
├── SessionDataLost      a crash or failover of the store lost the newest data of the session, which
│                        its owner may still have
├── IdempotencyConflict  the idempotency key was used for other content
└── ResponseNotFound     no such response is being generated
"""

from continuo.realtime.errors import RealtimeError
from continuo.realtime.store import keys


class StoreError(RealtimeError):
    retryable = False


class StoreUnavailable(StoreError):
    retryable = True


class UnknownLayout(StoreUnavailable):
    def __init__(self, name: str, layout: int) -> None:
        super().__init__(
            f"{name} is stored in layout {layout} by another version of Continuo; this version "
            f"stores in layout {keys.LAYOUT}"
        )


class StoreReplaced(StoreError):
    pass


class StoreUnusable(StoreError):
    pass


class SessionNotFound(StoreError):
    def __init__(self, session: str) -> None:
        super().__init__(f"session {session} is not in the store")
        self.session = session


class SessionExists(StoreError):
    def __init__(self, session: str) -> None:
        super().__init__(f"session {session} already exists")
        self.session = session


class LeaseLost(StoreError):
    def __init__(self, session: str, owner: str) -> None:
        super().__init__(f"session {session} is owned by {owner} now")
        self.session = session
        self.owner = owner


class SessionEnded(LeaseLost):
    def __init__(self, session: str) -> None:
        super().__init__(session, "no gateway")


class SessionDataLost(StoreError):
    def __init__(self, session: str, detail: str) -> None:
        super().__init__(f"the store has lost the end of session {session}: {detail}")
        self.session = session


class IdempotencyConflict(StoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key '{key}' was used before with other content")
        self.key = key


class ResponseNotFound(StoreError):
    def __init__(self, response_id: str) -> None:
        super().__init__(f"response {response_id} is not being generated")
        self.response_id = response_id

"""What a store says instead of doing it, drawn once.

StoreError            a RealtimeError. Nothing changed, except after StoreUnavailable: not known
├── StoreUnavailable  no answer in time, or no writes taken (full, read-only, locked, another
│                     password): try again; the same call twice is the call once
├── StoreLost         not the store that gave the lease: flushed, or replaced by an empty one
├── StoreRefused      cannot be used: wrong eviction policy, password, durability. At opening
├── UnknownSession    no such session, or its time is over
├── SessionExists     that id is taken
├── StaleFence        somebody else owns the session now: stop speaking for it
│   └── SessionEnded  nobody does, and nobody will: it was ended
├── SessionBehind     the store has lost the end of it (crash, fail-over); the owner may know it
├── Conflict          the idempotency key was used for other content
└── UnknownAnswer     no such answer is being made
"""

from continuo.realtime.errors import RealtimeError


class StoreError(RealtimeError):
    retryable = False


class StoreUnavailable(StoreError):
    retryable = True


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
        super().__init__(f"session {session} exists")
        self.session = session


class OwnershipLost(StoreError):
    def __init__(self, session: str, owner: str) -> None:
        super().__init__(f"session {session} is owned by {owner} now")
        self.session = session
        self.owner = owner


class SessionEnded(OwnershipLost):
    def __init__(self, session: str) -> None:
        super().__init__(session, "nobody")


class SessionDataLost(StoreError):
    def __init__(self, session: str, detail: str) -> None:
        super().__init__(f"the store has lost the end of session {session}: {detail}")
        self.session = session


class IdempotencyConflict(StoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"id '{key}' was used before with other content")
        self.key = key


class ResponseNotFound(StoreError):
    def __init__(self, response_id: str) -> None:
        super().__init__(f"answer {response_id} is not being made")
        self.response_id = response_id

"""Requests: what a client has asked under ids of its own, and what came of it. Asked again it is
answered again, and not done again."""

import contextlib
from collections.abc import Awaitable, Callable

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.store import IdempotencyConflict, IdempotentRequest

IDEMPOTENCY_KEYS_MAX = 1024
"""Remembered here; the store remembers about as many."""


class IdempotencyKeys:
    def __init__(self, session_writer: SessionWriter, *, is_complete: bool) -> None:
        """`all_here`: nothing was asked of the session elsewhere, or before this process."""
        self._session_writer = session_writer
        self._is_complete = is_complete
        self._recorded: dict[str, IdempotentRequest] = {}
        session_writer.completed_requests = self._recorded.values
        self._unwritten: dict[str, IdempotentRequest] = {}
        """Those that the store has not heard of."""

    async def find_result(self, idempotent_request: IdempotentRequest) -> bytes | None:
        """None: it was not asked before. Raises Conflict, StoreError."""
        done = self._recorded.get(idempotent_request.key)
        if done is None:
            return (
                None
                if self._is_complete
                else await self._session_writer.find_result(idempotent_request)
            )
        if done.content != idempotent_request.content:
            raise IdempotencyConflict(idempotent_request.key)
        return done.result

    def record(self, idempotent_request: IdempotentRequest) -> None:
        self._recorded[idempotent_request.key] = idempotent_request
        if len(self._recorded) > IDEMPOTENCY_KEYS_MAX:
            del self._recorded[next(iter(self._recorded))]
            self._is_complete = False

    def record_unwritten(self, idempotent_request: IdempotentRequest) -> None:
        """Done, but not written: `settle` does so before anything else is done."""
        self.record(idempotent_request)
        self._unwritten[idempotent_request.key] = idempotent_request

    async def write_pending(self, write: Callable[[IdempotentRequest], Awaitable[None]]) -> None:
        """Raises StoreError."""
        for once in [*self._unwritten.values()]:
            with contextlib.suppress(IdempotencyConflict):
                await write(once)
            del self._unwritten[once.key]

"""Idempotency keys: the requests executed under a client's event ids, and their outcomes.

A retry under the same key gets the recorded outcome and is not executed again.
"""

import contextlib
from collections.abc import Awaitable, Callable

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.store import IdempotencyConflict, IdempotentRequest

IDEMPOTENCY_KEYS_MAX = 1024
"""Keys kept in memory per session; the store keeps about as many."""


class IdempotencyKeys:
    """The idempotency keys of one session: in memory, and beyond that in the store."""

    def __init__(
        self,
        session_writer: SessionWriter,
        recorded: dict[str, IdempotentRequest],
        *,
        is_complete: bool,
    ) -> None:
        """`recorded`: the requests in memory by key, which `session_writer` restores in a store
        that has lost them. `is_complete`: no request of the session was executed by another
        gateway, or before this process started. A key that is not in memory is then new, and the
        store is not read."""
        self._session_writer = session_writer
        self._is_complete = is_complete
        self._recorded = recorded
        self._unwritten: dict[str, IdempotentRequest] = {}
        """Executed requests whose outcomes are not in the store yet."""

    async def find_result(self, idempotent_request: IdempotentRequest) -> bytes | None:
        """Return the recorded outcome. Returns None if the key is new.

        Raises IdempotencyConflict if the key was used for other content, and StoreError.
        """
        recorded = self._recorded.get(idempotent_request.key)
        if recorded is None:
            return (
                None
                if self._is_complete
                else await self._session_writer.find_result(idempotent_request)
            )
        if recorded.content != idempotent_request.content:
            raise IdempotencyConflict(idempotent_request.key)
        return recorded.result

    def record(self, idempotent_request: IdempotentRequest) -> None:
        """Keep the outcome of an executed request. Above `IDEMPOTENCY_KEYS_MAX` the oldest is
        evicted."""
        self._recorded[idempotent_request.key] = idempotent_request
        if len(self._recorded) > IDEMPOTENCY_KEYS_MAX:
            del self._recorded[next(iter(self._recorded))]
            self._is_complete = False

    def record_unwritten(self, idempotent_request: IdempotentRequest) -> None:
        """Keep the outcome of a request that was executed without a write. `write_pending` writes
        it before the next change of the session."""
        self.record(idempotent_request)
        self._unwritten[idempotent_request.key] = idempotent_request

    async def write_pending(self, write: Callable[[IdempotentRequest], Awaitable[None]]) -> None:
        """Write the outcomes that the store does not have yet. Raises StoreError."""
        for request in [*self._unwritten.values()]:
            with contextlib.suppress(IdempotencyConflict):
                await write(request)
            del self._unwritten[request.key]

"""Idempotency keys: the requests executed under a client's event ids, and their outcomes.

A retry under the same key gets the recorded outcome and is not executed again.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.store import IdempotencyConflict, IdempotentRequest

IDEMPOTENCY_MEMORY_BYTES_MAX = 128 * 1024
"""Memory of the keys and outcomes of one session: about 500 of ordinary length. The store keeps
more of them."""

_RECORD_OVERHEAD_BYTES = 150
"""Memory of one record without its key, digest and outcome: the struct and its place in the
dictionary."""


def _ignore(_size_bytes: int) -> None:
    pass


class IdempotencyKeys:
    """The idempotency keys of one session: in memory, and beyond that in the store."""

    def __init__(
        self,
        session_writer: SessionWriter,
        recorded: dict[str, IdempotentRequest],
        *,
        is_complete: bool,
        hold: Callable[[int], None] = _ignore,
    ) -> None:
        """`recorded`: the requests in memory by key, which `session_writer` restores in a store
        that has lost them. `is_complete`: no request of the session was executed by another
        gateway, or before this process started. A key that is not in memory is then new, and the
        store is not read. `hold`: called with each change of the bytes in memory."""
        self._session_writer = session_writer
        self._is_complete = is_complete
        self._recorded = recorded
        self._bytes = 0
        self._hold = hold
        self._charge(sum(map(_count_bytes, recorded.values())))
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
        if recorded.content_digest != idempotent_request.content_digest:
            raise IdempotencyConflict(idempotent_request.key)
        return recorded.result

    def record(self, idempotent_request: IdempotentRequest) -> None:
        """Keep the outcome of an executed request. Above `IDEMPOTENCY_MEMORY_BYTES_MAX` the oldest
        are evicted."""
        replaced = self._recorded.pop(idempotent_request.key, None)
        if replaced is not None:
            self._charge(-_count_bytes(replaced))
        self._recorded[idempotent_request.key] = idempotent_request
        self._charge(_count_bytes(idempotent_request))
        while self._bytes > IDEMPOTENCY_MEMORY_BYTES_MAX:
            oldest = self._recorded.pop(next(iter(self._recorded)))
            self._charge(-_count_bytes(oldest))
            self._unwritten.pop(oldest.key, None)
            self._is_complete = False

    def record_unwritten(self, idempotent_request: IdempotentRequest) -> None:
        """Keep the outcome of a request that was executed without a write. `write_pending` writes
        it before the next change of the session, unless the key was evicted."""
        self.record(idempotent_request)
        self._unwritten[idempotent_request.key] = idempotent_request

    async def write_pending(self, write: Callable[[IdempotentRequest], Awaitable[None]]) -> None:
        """Write the outcomes that the store does not have yet. Raises StoreError."""
        for request in [*self._unwritten.values()]:
            with contextlib.suppress(IdempotencyConflict):
                await write(request)
            self._unwritten.pop(request.key, None)

    def release(self) -> None:
        """Report that this process holds the keys no more, when it unloads the session."""
        self._hold(-self._bytes)
        self._hold = _ignore

    def _charge(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._hold(size_bytes)


def _count_bytes(request: IdempotentRequest) -> int:
    return (
        sys.getsizeof(request.key)
        + sys.getsizeof(request.content_digest)
        + sys.getsizeof(request.result)
        + _RECORD_OVERHEAD_BYTES
    )

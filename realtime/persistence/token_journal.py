"""Token journal: the token ids of open responses are written to the store while they are sampled,
with one call for many responses."""

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.store import (
    LeaseLost,
    ResponseNotFound,
    SessionDataLost,
    Store,
    StoreError,
    StoreUnavailable,
    TokenBatch,
)

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
"""Maximum time between emitting a token id and writing it to the store, while the store is
available."""
_WORKERS = 4
"""Number of tasks that flush the journals of a gateway. Each task flushes its share of the journals
in one call per interval; a single call for all journals would delay other work for too long."""


class TokenJournal:
    """The journal of one response."""

    def __init__(
        self,
        session_writer: SessionWriter,
        response_id: str,
        ids: Sequence[int],
        written: int = 0,
        *,
        is_journaled: bool = True,
    ) -> None:
        """Args:
        session_writer: has the lease under which the ids are written.
        response_id: id of a response that has a checkpoint in the store.
        ids: the live list of the sampled ids, to which the generation appends.
        written: how many of the ids the store has already.
        is_journaled: False: the store has no checkpoint of the response, so nothing is journaled.
        """
        self._session_writer = session_writer
        self._response_id = response_id
        self._ids = ids
        self._written = written
        self._is_closed = not is_journaled

    def pending_batch(self) -> TokenBatch | None:
        """Return the ids that are not written yet, or None if there are none or the journal is
        closed."""
        batch = self._ids[self._written :]
        if self._is_closed or not batch:
            return None
        return TokenBatch(
            self._session_writer.lease, self._response_id, self._written, tuple(batch)
        )

    def mark_written(self, count: int) -> None:
        """Record that the first `count` ids are in the store."""
        self._written = count

    async def flush(self) -> None:
        """Write the pending ids. Raises StoreError."""
        if (batch := self.pending_batch()) is None:
            return
        try:
            self.mark_written(
                await self._session_writer.journal(batch.response_id, batch.first, batch.ids)
            )
        except (SessionDataLost, ResponseNotFound):
            self._written = 0
            raise

    async def retry_flush(self) -> None:
        """Write the pending ids in a separate call, because `journal_all` does not report why it
        skipped them. Never raises StoreError."""
        try:
            await self.flush()
        except StoreUnavailable:
            pass
        except LeaseLost:
            self._is_closed = True
            self._session_writer.on_replaced()
        except StoreError as error:
            log.warning("the journal of response %s failed: %s", self._response_id, error)
            self._written = 0  # the store has lost the response; its session writer restores it


class JournalFlusher:
    """Flushes the journals of a gateway. While the store is unavailable, responses continue and the
    flush is retried."""

    def __init__(self, store: Store) -> None:
        self._workers = [_FlushWorker(store) for _ in range(_WORKERS)]

    @contextlib.contextmanager
    def track(self, journal: TokenJournal) -> Generator[None]:
        """Flush a journal periodically while the context is open."""
        worker = min(self._workers, key=lambda worker: len(worker.journals))
        worker.journals[journal] = None
        worker.start()
        try:
            yield
        finally:
            del worker.journals[journal]


class _FlushWorker:
    def __init__(self, store: Store) -> None:
        self.journals: dict[TokenJournal, None] = {}
        self._store = store
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="journals")

    async def _run(self) -> None:
        while self.journals:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            try:
                await self._flush()
            except Exception:  # a fault in one journal does not stop the others
                log.exception("flushing the journals failed")

    async def _flush(self) -> None:
        pending = [
            (journal, batch) for journal in self.journals if (batch := journal.pending_batch())
        ]
        if not pending:
            return
        written: list[int | None] = [None] * len(pending)
        try:
            written = await self._store.journal_all([batch for _, batch in pending])
        except StoreUnavailable:
            return
        except StoreError as error:
            log.warning("the journals were not written: %s", error)
        for (journal, _), count in zip(pending, written, strict=True):
            if count is not None:
                journal.mark_written(count)
        for (journal, _), count in zip(pending, written, strict=True):
            if count is None and journal in self.journals:
                await journal.retry_flush()

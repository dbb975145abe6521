"""Journal: the ids of answers being made go to the store while they are drawn, those of many in
one call."""

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.store import (
    OwnershipLost,
    ResponseNotFound,
    SessionDataLost,
    Store,
    StoreError,
    StoreUnavailable,
    TokenBatch,
)

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
"""At most this long an id that was told is not in the store; longer while that is away."""
_WORKERS = 4
"""A gateway writes so many times in a batch's time, a share of its answers at a time: a call for
all of them would hold up what comes just then."""


class TokenJournal:
    """Of one answer: `ids` grows meanwhile."""

    def __init__(
        self,
        session_writer: SessionWriter,
        response_id: str,
        ids: Sequence[int],
        written: int = 0,
        *,
        is_journaled: bool = True,
    ) -> None:
        """`kept` False: the store does not know how the answer began, and nothing is journaled."""
        self._session_writer = session_writer
        self._response_id = response_id
        self._ids = ids
        self._written = written
        self._is_closed = not is_journaled

    def pending_batch(self) -> TokenBatch | None:
        """What is not written yet."""
        batch = self._ids[self._written :]
        if self._is_closed or not batch:
            return None
        return TokenBatch(
            self._session_writer.lease, self._response_id, self._written, tuple(batch)
        )

    def mark_written(self, count: int) -> None:
        """The store has so many of its ids."""
        self._written = count

    async def flush(self) -> None:
        """Raises StoreError."""
        if (news := self.pending_batch()) is None:
            return
        try:
            self.mark_written(
                await self._session_writer.journal(news.response_id, news.first, news.ids)
            )
        except (SessionDataLost, ResponseNotFound):
            self._written = 0
            raise

    async def retry_flush(self) -> None:
        """What the store refused for a reason that it did not say: by itself."""
        try:
            await self.flush()
        except StoreUnavailable:
            pass
        except OwnershipLost:
            self._is_closed = True
            self._session_writer.on_replaced()
        except StoreError as error:
            log.warning("journal of %s: %s", self._response_id, error)
            self._written = 0  # the store has lost it; the ledger gives it again


class JournalFlusher:
    """Keeps the journals of a gateway. With the store away answers go on, and it tries again."""

    def __init__(self, store: Store) -> None:
        self._workers = [_FlushWorker(store) for _ in range(_WORKERS)]

    @contextlib.contextmanager
    def track(self, journal: TokenJournal) -> Generator[None]:
        pen = min(self._workers, key=lambda pen: len(pen.journals))
        pen.journals[journal] = None
        pen.start()
        try:
            yield
        finally:
            del pen.journals[journal]


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
            except Exception:  # of one answer: the others are written all the same
                log.exception("journals")

    async def _flush(self) -> None:
        news = [(journal, one) for journal in self.journals if (one := journal.pending_batch())]
        if not news:
            return
        written: list[int | None] = [None] * len(news)
        try:
            written = await self._store.journal_all([one for _, one in news])
        except StoreUnavailable:
            return
        except StoreError as error:
            log.warning("journals: %s", error)
        for (journal, _), count in zip(news, written, strict=True):
            if count is not None:
                journal.mark_written(count)
        for (journal, _), count in zip(news, written, strict=True):
            if count is None and journal in self.journals:
                await journal.retry_flush()

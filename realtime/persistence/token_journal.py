"""Journal: the ids of answers being made go to the store while they are drawn, those of many in
one call."""

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence

from continuo.realtime.persistence.session_writer import Ledger
from continuo.realtime.store import (
    SessionBehind,
    Spoken,
    StaleFence,
    Store,
    StoreError,
    StoreUnavailable,
    UnknownAnswer,
)

log = logging.getLogger(__name__)

BATCH_S = 0.1
"""At most this long an id that was told is not in the store; longer while that is away."""
_PENS = 4
"""A gateway writes so many times in a batch's time, a share of its answers at a time: a call for
all of them would hold up what comes just then."""


class Journal:
    """Of one answer: `ids` grows meanwhile."""

    def __init__(
        self,
        ledger: Ledger,
        answer: str,
        ids: Sequence[int],
        written: int = 0,
        *,
        kept: bool = True,
    ) -> None:
        """`kept` False: the store does not know how the answer began, and nothing is journaled."""
        self._ledger = ledger
        self._answer = answer
        self._ids = ids
        self._written = written
        self._over = not kept

    def news(self) -> Spoken | None:
        """What is not written yet."""
        batch = self._ids[self._written :]
        if self._over or not batch:
            return None
        return Spoken(self._ledger.lease, self._answer, self._written, tuple(batch))

    def wrote(self, count: int) -> None:
        """The store has so many of its ids."""
        self._written = count

    async def flush(self) -> None:
        """Raises StoreError."""
        if (news := self.news()) is None:
            return
        try:
            self.wrote(await self._ledger.journal(news.answer, news.first, news.ids))
        except (SessionBehind, UnknownAnswer):
            self._written = 0
            raise

    async def catch_up(self) -> None:
        """What the store refused for a reason that it did not say: by itself."""
        try:
            await self.flush()
        except StoreUnavailable:
            pass
        except StaleFence:
            self._over = True
            self._ledger.on_replaced()
        except StoreError as error:
            log.warning("journal of %s: %s", self._answer, error)
            self._written = 0  # the store has lost it; the ledger gives it again


class Scribe:
    """Keeps the journals of a gateway. With the store away answers go on, and it tries again."""

    def __init__(self, store: Store) -> None:
        self._pens = [_Pen(store) for _ in range(_PENS)]

    @contextlib.contextmanager
    def keeping(self, journal: Journal) -> Generator[None]:
        pen = min(self._pens, key=lambda pen: len(pen.journals))
        pen.journals[journal] = None
        pen.start()
        try:
            yield
        finally:
            del pen.journals[journal]


class _Pen:
    def __init__(self, store: Store) -> None:
        self.journals: dict[Journal, None] = {}
        self._store = store
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="journals")

    async def _run(self) -> None:
        while self.journals:
            await asyncio.sleep(BATCH_S)
            try:
                await self._write()
            except Exception:  # of one answer: the others are written all the same
                log.exception("journals")

    async def _write(self) -> None:
        news = [(journal, one) for journal in self.journals if (one := journal.news())]
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
                journal.wrote(count)
        for (journal, _), count in zip(news, written, strict=True):
            if count is None and journal in self.journals:
                await journal.catch_up()

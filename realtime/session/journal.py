"""Journal: the ids of an answer being made go to the store while they are drawn."""

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence

from realtime.session.ledger import Ledger
from realtime.store import (
    SessionBehind,
    StaleFence,
    StoreError,
    StoreUnavailable,
    UnknownAnswer,
)

log = logging.getLogger(__name__)

BATCH_S = 0.1
"""At most this long an id that was told is not in the store; longer while that is away."""


class Journal:
    """`ids` grows while this runs. With the store away the answer goes on, and this tries again."""

    def __init__(self, ledger: Ledger, answer: str, ids: Sequence[int], written: int = 0) -> None:
        self._ledger = ledger
        self._answer = answer
        self._ids = ids
        self._written = written

    @contextlib.contextmanager
    def kept(self) -> Generator[None]:
        running = asyncio.create_task(self._run(), name=f"journal {self._answer}")
        try:
            yield
        finally:
            running.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BATCH_S)
            try:
                await self.flush()
            except StoreUnavailable:
                continue
            except StaleFence:
                self._ledger.on_replaced()
                return
            except StoreError as error:
                log.warning("journal of %s: %s", self._answer, error)
                self._written = 0  # the store has lost it; the ledger gives it again

    async def flush(self) -> None:
        """Raises StoreError."""
        batch = tuple(self._ids[self._written :])
        if not batch:
            return
        try:
            self._written = await self._ledger.journal(self._answer, self._written, batch)
        except (SessionBehind, UnknownAnswer):
            self._written = 0
            raise

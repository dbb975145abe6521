"""A write that was not answered has been done or not: what is written next stands either way."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from continuo.realtime.persistence.session_codec import (
    ConversationEntry,
    DraftPiece,
    ResponsePlaceholder,
    encode_entry,
)
from continuo.realtime.persistence.session_writer import (
    DesiredSession,
    SessionChanges,
    SessionWriter,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import (
    DuplicateWrite,
    IdempotencyConflict,
    IdempotentRequest,
    SessionLease,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.store_records import fresh_session

A, B, C, PLACE = DraftPiece("a"), DraftPiece("b"), DraftPiece("c"), ResponsePlaceholder("resp_1")
LOGS: tuple[tuple[ConversationEntry, ...], ...] = (
    (A,),
    (A, B),
    (A, C),
    (A, PLACE),
    (A, B, C),
    (C, B),
)


class Unanswering(SqliteStore):
    """`lose`: the next write is done or not, and nobody hears of it."""

    lose: bool | None = None
    claims: int | None = None
    """So many are answered, one is not."""

    async def claim(self, *args: Any, **options: Any) -> SessionLease:
        if self.claims is not None:
            self.claims -= 1
            if self.claims < 0:
                self.claims = None
                raise StoreUnavailable("no answer")
        return await super().claim(*args, **options)

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        lose, self.lose = self.lose, None
        if lose is not False:
            written = await super().write(lease, batch)
            if lose is None:
                return written
        raise StoreUnavailable("no answer")


@pytest.fixture
async def store() -> AsyncIterator[Unanswering]:
    store = await Unanswering.open(None, "normal")
    yield store
    await store.aclose()


def whole(pieces: tuple[ConversationEntry, ...], *events: bytes) -> DesiredSession:
    return DesiredSession(
        entries=pieces,
        settings=GenerationSettings(),
        epoch=0,
        first_offset=0,
        next_offset=len(events),
        encode_events_since=lambda number: [*events[number:]],
    )


@pytest.mark.parametrize("done", [True, False], ids=["done", "lost"])
async def test_the_log_is_what_is_written_next(store: Unanswering, done: bool) -> None:
    for before, meant, after in product(LOGS, repeat=3):
        if before == meant:
            continue  # nothing is written
        new = fresh_session()
        ledger = SessionWriter(store, await store.create(new), new)
        await ledger.write(whole(before), SessionChanges())
        store.lose = done
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole(meant), SessionChanges())
        await ledger.write(whole(after), SessionChanges())
        found = await store.load(new.id)
        assert found is not None
        assert found.entries == tuple(map(encode_entry, after)), f"{before} {meant} {after}"


async def test_a_write_behind_which_no_fence_was_given_was_not_answered(
    store: Unanswering,
) -> None:
    """What it told is not told, and what is told in its place is written."""
    new = fresh_session()
    ledger = SessionWriter(store, await store.create(new), new)
    await ledger.write(whole((A,), b"A"), SessionChanges())
    for before in (False, True):
        store.lose = before
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole((A, B), b"A", b"B"), SessionChanges())
        store.claims = 1
        with pytest.raises(StoreUnavailable):
            await ledger.write(whole((A, PLACE), b"A", b"place"), SessionChanges())
        await ledger.write(whole((A, C), b"A", b"C"), SessionChanges())
        found = await store.load(new.id)
        assert found is not None
        assert found.entries == (encode_entry(A), encode_entry(C))
        assert found.events.bodies == (b"A", b"C")


async def test_what_is_refused_leaves_the_log_as_it_was(store: Unanswering) -> None:
    new = fresh_session()
    ledger = SessionWriter(store, await store.create(new), new)
    await ledger.write(whole((A, B)), SessionChanges(request=IdempotentRequest("key", b"one")))
    with pytest.raises(IdempotencyConflict):
        await ledger.write(whole((A,)), SessionChanges(request=IdempotentRequest("key", b"other")))
    await ledger.write(whole((A,)), SessionChanges(request=IdempotentRequest("another", b"other")))
    found = await store.load(new.id)
    assert found is not None
    assert found.entries == (encode_entry(A),)

"""Tests of the session writer: a write without a reply was executed or not; the next one holds."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import msgspec
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
    ResponseCheckpoint,
    SessionLease,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.store_records import new_session

A, B, C = map(DraftPiece, "abc")
PLACEHOLDER = ResponsePlaceholder("resp_1")
ENTRY_LISTS: tuple[tuple[ConversationEntry, ...], ...] = (
    (A,),
    (A, B),
    (A, C),
    (A, PLACEHOLDER),
    (A, B, C),
    (C, B),
)


class ReplyLosingStore(SqliteStore):
    """A store that loses the replies to writes and claims."""

    lose_reply_if_executed: bool | None = None
    """The reply to the next write is lost, and the write executed (True) or not (False)."""
    claims_until_loss: int | None = None
    """The number of claims that succeed before one is not executed; None: all succeed."""

    async def claim(self, *args: Any, **options: Any) -> SessionLease:
        if self.claims_until_loss is not None:
            self.claims_until_loss -= 1
            if self.claims_until_loss < 0:
                self.claims_until_loss = None
                raise StoreUnavailable("no reply")
        return await super().claim(*args, **options)

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        lose_reply_if_executed, self.lose_reply_if_executed = self.lose_reply_if_executed, None
        if lose_reply_if_executed is not False:
            written = await super().write(lease, batch)
            if lose_reply_if_executed is None:
                return written
        raise StoreUnavailable("no reply")


@pytest.fixture
async def store() -> AsyncIterator[ReplyLosingStore]:
    store = await ReplyLosingStore.open(None, "normal")
    yield store
    await store.aclose()


def desired(entries: tuple[ConversationEntry, ...], *events: bytes) -> DesiredSession:
    return DesiredSession(
        entries=entries,
        settings=GenerationSettings(),
        epoch=0,
        first_offset=0,
        next_offset=len(events),
        encode_events_since=lambda offset: [*events[offset:]],
    )


@pytest.mark.parametrize("executed", [True, False], ids=["executed", "not-executed"])
async def test_write_after_a_lost_reply_leaves_exactly_the_desired_entries(
    store: ReplyLosingStore, executed: bool
) -> None:
    for before, unacknowledged, after in product(ENTRY_LISTS, repeat=3):
        if before == unacknowledged:
            continue  # nothing is written
        new = new_session()
        writer = SessionWriter(store, await store.create(new), new)
        await writer.write(desired(before), SessionChanges())
        store.lose_reply_if_executed = executed
        with pytest.raises(StoreUnavailable):
            await writer.write(desired(unacknowledged), SessionChanges())
        await writer.write(desired(after), SessionChanges())
        found = await store.load(new.id)
        assert found is not None
        assert found.entries == tuple(map(encode_entry, after)), (
            f"{before} {unacknowledged} {after}"
        )


async def test_write_after_a_failed_claim_replaces_entries_and_events(
    store: ReplyLosingStore,
) -> None:
    """A write without a reply, then one whose claim fails: events of neither stay in the store."""
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    await writer.write(desired((A,), b"A"), SessionChanges())
    for executed in (False, True):
        store.lose_reply_if_executed = executed
        with pytest.raises(StoreUnavailable):
            await writer.write(desired((A, B), b"A", b"B"), SessionChanges())
        store.claims_until_loss = 1
        with pytest.raises(StoreUnavailable):
            await writer.write(desired((A, PLACEHOLDER), b"A", b"place"), SessionChanges())
        await writer.write(desired((A, C), b"A", b"C"), SessionChanges())
        found = await store.load(new.id)
        assert found is not None
        assert found.entries == (encode_entry(A), encode_entry(C))
        assert found.events.bodies == (b"A", b"C")


@pytest.mark.parametrize("executed", [True, False], ids=["executed", "not-executed"])
async def test_write_after_a_lost_reply_keeps_the_journal_of_a_running_response(
    store: ReplyLosingStore, executed: bool
) -> None:
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    running, ended = (ResponseCheckpoint(id=f"resp_{n}", seed=1, prompt=1) for n in (1, 2))
    for checkpoint in (running, ended):
        await writer.write(desired((A,)), SessionChanges(started_response=checkpoint))
        assert await writer.journal(checkpoint.id, 0, (7, 8)) == 2
    after = msgspec.structs.replace(desired((A, B)), started_responses=(running,))
    store.lose_reply_if_executed = executed
    with pytest.raises(StoreUnavailable):
        await writer.write(after, SessionChanges(ended_response=ended.id))
    await writer.write(after, SessionChanges())
    found = await store.load(new.id)
    assert found is not None
    assert [(each.checkpoint, each.ids) for each in found.running_responses] == [(running, (7, 8))]


async def test_refused_write_leaves_the_entries_unchanged(store: ReplyLosingStore) -> None:
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    await writer.write(desired((A, B)), SessionChanges(request=IdempotentRequest("key", b"one")))
    with pytest.raises(IdempotencyConflict):
        await writer.write(
            desired((A,)), SessionChanges(request=IdempotentRequest("key", b"other"))
        )
    await writer.write(
        desired((A,)), SessionChanges(request=IdempotentRequest("another", b"other"))
    )
    found = await store.load(new.id)
    assert found is not None
    assert found.entries == (encode_entry(A),)

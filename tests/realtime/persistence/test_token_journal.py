"""Tests of the token journal: ids of many responses are batched; a refused one delays no other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack

import pytest

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.persistence.token_journal import JournalFlusher, TokenJournal
from continuo.realtime.store import TokenBatch, WriteBatch
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.store_records import new_session, response_checkpoint
from tests.support.waiting import wait_until

SESSIONS = 8


class CountingStore(SqliteStore):
    """A store that records the number of responses in each journal call."""

    batch_sizes: list[int]

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        self.batch_sizes.append(len(batches))
        return await super().journal_all(batches)


@pytest.fixture
async def store() -> AsyncIterator[CountingStore]:
    store = await CountingStore.open(None, "normal")
    assert isinstance(store, CountingStore)
    store.batch_sizes = []
    yield store
    await store.aclose()


async def open_session(
    store: CountingStore,
    *,
    with_response: bool = True,
    on_replaced: Callable[[], None] = lambda: None,
) -> SessionWriter:
    new = new_session()
    lease = await store.create(new)
    if with_response:
        await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    return SessionWriter(store, lease, new, on_replaced=on_replaced)


async def wait_until_stored(
    store: CountingStore, writer: SessionWriter, ids: Sequence[int]
) -> None:
    """Wait until the store has these ids of the response, and no others."""
    async with asyncio.timeout(20):
        while True:
            found = await store.load(writer.lease.session)
            assert found is not None
            if found.running_responses and found.running_responses[0].ids == tuple(ids):
                return
            await asyncio.sleep(0.01)


async def test_ids_of_many_responses_are_written_in_few_calls(store: CountingStore) -> None:
    flusher = JournalFlusher(store)
    writers = [await open_session(store) for _ in range(SESSIONS)]
    ids_per_session = [[n] for n in range(SESSIONS)]
    with ExitStack() as journals:
        for writer, ids in zip(writers, ids_per_session, strict=True):
            journals.enter_context(flusher.track(TokenJournal(writer, "resp_1", ids)))
        for writer, ids in zip(writers, ids_per_session, strict=True):
            await wait_until_stored(store, writer, ids)
        assert sum(store.batch_sizes) == SESSIONS, "each once"
        assert max(store.batch_sizes) > 1, "some calls carry several responses"
        ids_per_session[2] += [7, 8]
        await wait_until_stored(store, writers[2], [2, 7, 8])
        assert sum(store.batch_sizes) == SESSIONS + 1, "only the new ids"


async def test_fault_of_one_journal_stops_no_other(store: CountingStore) -> None:
    flusher = JournalFlusher(store)
    ours, failed = await open_session(store), asyncio.Event()

    def fail() -> None:
        failed.set()
        raise KeyError("a fault")

    superseded = await open_session(store, on_replaced=fail)
    await store.claim(superseded.lease.session, "gate-2", ttl_s=60)
    with ExitStack() as journals:
        ids_per_session = [[1] for _ in range(4)]
        for ids in ids_per_session:  # one for each worker of the flusher
            journals.enter_context(flusher.track(TokenJournal(ours, "resp_1", ids)))
        journals.enter_context(flusher.track(TokenJournal(superseded, "resp_1", [1])))
        await asyncio.wait_for(failed.wait(), 20)
        ids_per_session[0].append(2)
        await wait_until_stored(store, ours, [1, 2])


async def test_superseded_session_is_notified_and_others_are_written(store: CountingStore) -> None:
    flusher = JournalFlusher(store)
    replaced = asyncio.Event()
    ours, superseded = (
        await open_session(store),
        await open_session(store, on_replaced=replaced.set),
    )
    await store.claim(superseded.lease.session, "gate-2", ttl_s=60)
    with ExitStack() as journals:
        for writer in (superseded, ours):
            journals.enter_context(flusher.track(TokenJournal(writer, "resp_1", [1, 2])))
        await asyncio.wait_for(replaced.wait(), 20)
        await wait_until_stored(store, ours, [1, 2])
        await wait_until_stored(store, superseded, [])


async def test_response_not_yet_stored_is_journaled_from_its_first_id(
    store: CountingStore,
) -> None:
    flusher, writer = JournalFlusher(store), await open_session(store, with_response=False)
    with flusher.track(TokenJournal(writer, "resp_1", [1, 2, 3], 2)):
        await wait_until(lambda: store.batch_sizes)
        await store.write(writer.lease, WriteBatch(started_responses=(response_checkpoint(),)))
        await wait_until_stored(store, writer, [1, 2, 3])


async def test_ended_response_is_not_journaled(store: CountingStore) -> None:
    flusher = JournalFlusher(store)
    writer, other = await open_session(store), await open_session(store)
    ids: list[int] = []
    with flusher.track(TokenJournal(other, "resp_1", [1])):
        with flusher.track(TokenJournal(writer, "resp_1", ids)):
            ids.append(5)
        await wait_until_stored(store, other, [1])
    assert sum(store.batch_sizes) == 1

"""The ids of many answers go to the store in few calls; one that is refused holds up no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack

import pytest

from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.persistence.token_journal import JournalFlusher, TokenJournal
from continuo.realtime.store import TokenBatch, WriteBatch
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.store_records import answer, fresh_session

COUNT = 8


class Counted(SqliteStore):
    """How many answers each call was for."""

    sizes: list[int]

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        self.sizes.append(len(batches))
        return await super().journal_all(batches)


@pytest.fixture
async def store() -> AsyncIterator[Counted]:
    store = await Counted.open(None, "normal")
    assert isinstance(store, Counted)
    store.sizes = []
    yield store
    await store.aclose()


async def session(store: Counted, *, begins: bool = True) -> SessionWriter:
    new = fresh_session()
    lease = await store.create(new)
    if begins:
        await store.write(lease, WriteBatch(started_responses=(answer(),)))
    return SessionWriter(store, lease, new)


async def stored(store: Counted, ledger: SessionWriter, ids: Sequence[int]) -> None:
    """Returns when the store has these, and only these."""
    async with asyncio.timeout(20):
        while True:
            found = await store.load(ledger.lease.session)
            assert found is not None
            if found.running_responses and found.running_responses[0].ids == tuple(ids):
                return
            await asyncio.sleep(0.01)


async def test_many_answers_are_written_in_few_calls(store: Counted) -> None:
    scribe = JournalFlusher(store)
    ledgers = [await session(store) for _ in range(COUNT)]
    said = [[n] for n in range(COUNT)]
    with ExitStack() as open:
        for ledger, ids in zip(ledgers, said, strict=True):
            open.enter_context(scribe.track(TokenJournal(ledger, "resp_1", ids)))
        for ledger, ids in zip(ledgers, said, strict=True):
            await stored(store, ledger, ids)
        assert sum(store.sizes) == COUNT, "each once"
        assert max(store.sizes) > 1, "not each by itself"
        said[2] += [7, 8]
        await stored(store, ledgers[2], [2, 7, 8])
        assert sum(store.sizes) == COUNT + 1, "only what is new"


async def test_a_fault_of_one_ends_no_other(store: Counted) -> None:
    scribe, ours, theirs = JournalFlusher(store), await session(store), await session(store)
    broken = asyncio.Event()

    def breaks() -> None:
        broken.set()
        raise KeyError("a fault")

    theirs.on_replaced = breaks
    await store.claim(theirs.lease.session, "gate-2", ttl_s=60)
    with ExitStack() as open:
        said = [[1] for _ in range(4)]
        for ids in said:  # one with each pen
            open.enter_context(scribe.track(TokenJournal(ours, "resp_1", ids)))
        open.enter_context(scribe.track(TokenJournal(theirs, "resp_1", [1])))
        await asyncio.wait_for(broken.wait(), 20)
        said[0].append(2)
        await stored(store, ours, [1, 2])


async def test_who_was_replaced_is_told_and_others_are_written(store: Counted) -> None:
    scribe = JournalFlusher(store)
    ours, theirs = await session(store), await session(store)
    replaced = asyncio.Event()
    theirs.on_replaced = replaced.set
    await store.claim(theirs.lease.session, "gate-2", ttl_s=60)
    with ExitStack() as open:
        for ledger in (theirs, ours):
            open.enter_context(scribe.track(TokenJournal(ledger, "resp_1", [1, 2])))
        await asyncio.wait_for(replaced.wait(), 20)
        await stored(store, ours, [1, 2])
        await stored(store, theirs, [])


async def test_what_the_store_does_not_know_yet_is_written_from_its_beginning(
    store: Counted,
) -> None:
    scribe, ledger = JournalFlusher(store), await session(store, begins=False)
    with scribe.track(TokenJournal(ledger, "resp_1", [1, 2, 3], 2)):
        async with asyncio.timeout(20):
            while not store.sizes:
                await asyncio.sleep(0.01)
        await store.write(ledger.lease, WriteBatch(started_responses=(answer(),)))
        await stored(store, ledger, [1, 2, 3])


async def test_nothing_is_written_of_an_answer_that_is_over(store: Counted) -> None:
    scribe, ledger, other = JournalFlusher(store), await session(store), await session(store)
    ids: list[int] = []
    with scribe.track(TokenJournal(other, "resp_1", [1])):
        with scribe.track(TokenJournal(ledger, "resp_1", ids)):
            ids.append(5)
        await stored(store, other, [1])
    assert sum(store.sizes) == 1

"""The right to write: ours until somebody else has it, whatever we were told of our own claims; and
what was not answered cannot undo what was done after it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.persistence.ownership import Ownership
from continuo.realtime.store import (
    OwnershipLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
    open_store,
)
from tests.support.store_records import entry, fresh_session


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await open_store("sqlite://:memory:")
    yield store
    await store.aclose()


@pytest.fixture
async def tenure(store: Store) -> Ownership:
    return Ownership(store, await store.create(fresh_session()), 60)


async def put(store: Store, lease: SessionLease, n: int) -> WriteResult:
    written = await store.write(lease, WriteBatch(kept_entries=0, entries=(entry(n),)))
    assert isinstance(written, WriteResult)
    return written


async def unanswered(tenure: Ownership, *, harmless: bool = False) -> SessionLease:
    """It is on its way, with this lease."""
    sent: list[SessionLease] = []

    async def send(lease: SessionLease) -> None:
        sent.append(lease)
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        await tenure.run(send, harmless_when_late=harmless)
    return sent[0]


async def test_what_arrives_late_is_refused(store: Store, tenure: Ownership) -> None:
    late = await unanswered(tenure)
    await tenure.run(lambda lease: put(store, lease, 1))
    with pytest.raises(OwnershipLost):
        await put(store, late, 2)
    found = await store.load(tenure.lease.session)
    assert found is not None
    assert found.entries == (entry(1),)


async def test_who_was_interrupted_is_in_doubt_too(store: Store, tenure: Ownership) -> None:
    async def hang(lease: SessionLease) -> None:
        await asyncio.Event().wait()

    writing = asyncio.create_task(tenure.run(hang))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    late = tenure.lease
    await tenure.run(lambda lease: put(store, lease, 1))
    with pytest.raises(OwnershipLost):
        await put(store, late, 2)


async def test_what_does_no_harm_needs_no_new_fence(store: Store, tenure: Ownership) -> None:
    late = await unanswered(tenure, harmless=True)
    await tenure.run(lambda lease: put(store, lease, 1))
    assert tenure.lease == late


async def test_what_was_asked_under_the_fence_before_is_asked_again(
    store: Store, tenure: Ownership
) -> None:
    taken = asyncio.Event()

    async def slow(lease: SessionLease) -> WriteResult:
        await taken.wait()
        return await put(store, lease, 1)

    writing = asyncio.create_task(tenure.run(slow))
    await asyncio.sleep(0)
    before = tenure.lease
    await tenure.claim()
    assert tenure.lease.fence > before.fence
    taken.set()
    assert await writing == WriteResult(1, 0)
    with pytest.raises(OwnershipLost):
        await put(store, before, 2)


async def test_a_fence_of_ours_that_we_were_not_told_of(store: Store, tenure: Ownership) -> None:
    """The claim was done, its answer was lost: nobody else has the session."""
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, ttl_s=60)
    used: list[SessionLease] = []

    async def write(lease: SessionLease) -> None:
        used.append(lease)
        await put(store, lease, 1)

    await asyncio.gather(*(tenure.run(write) for _ in range(5)))
    assert tenure.lease.fence > ghost.fence
    assert used == 5 * [used[0]] + 5 * [tenure.lease], "taken once for all that wait"
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, ttl_s=60)
    await tenure.claim()
    assert tenure.lease.fence > ghost.fence


async def test_somebody_else_is_not_thrown_out(store: Store, tenure: Ownership) -> None:
    theirs = await store.claim(tenure.lease.session, "gate-2", ttl_s=60)
    for call in (lambda: tenure.run(lambda lease: put(store, lease, 1)), tenure.claim):
        with pytest.raises(OwnershipLost) as caught:
            await call()
        assert caught.value.owner == "gate-2"
    await put(store, theirs, 3)


async def test_who_has_left_does_not_come_back(store: Store, tenure: Ownership) -> None:
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, ttl_s=60)
    tenure.stop()
    for call in (lambda: tenure.run(lambda lease: put(store, lease, 1)), tenure.claim):
        with pytest.raises(OwnershipLost):
            await call()
    await put(store, ghost, 3)


async def test_what_is_over_is_not_taken(store: Store, tenure: Ownership) -> None:
    await store.delete(tenure.lease)
    with pytest.raises(SessionNotFound):
        await tenure.claim()

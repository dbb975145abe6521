"""The right to write: ours until somebody else has it, whatever we were told of our own claims; and
what was not answered cannot undo what was done after it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.persistence.ownership import Tenure
from continuo.realtime.store import (
    Change,
    Lease,
    StaleFence,
    Store,
    StoreUnavailable,
    UnknownSession,
    Written,
    open_store,
)
from tests.realtime.store.making import entry, fresh_session


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await open_store("sqlite://:memory:")
    yield store
    await store.aclose()


@pytest.fixture
async def tenure(store: Store) -> Tenure:
    return Tenure(store, await store.create(fresh_session()), 60)


async def put(store: Store, lease: Lease, n: int) -> Written:
    written = await store.write(lease, Change(at=0, entries=(entry(n),)))
    assert isinstance(written, Written)
    return written


async def unanswered(tenure: Tenure, *, harmless: bool = False) -> Lease:
    """It is on its way, with this lease."""
    sent: list[Lease] = []

    async def send(lease: Lease) -> None:
        sent.append(lease)
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        await tenure.do(send, harmless_when_late=harmless)
    return sent[0]


async def test_what_arrives_late_is_refused(store: Store, tenure: Tenure) -> None:
    late = await unanswered(tenure)
    await tenure.do(lambda lease: put(store, lease, 1))
    with pytest.raises(StaleFence):
        await put(store, late, 2)
    found = await store.load(tenure.lease.session)
    assert found is not None
    assert found.log == (entry(1),)


async def test_who_was_interrupted_is_in_doubt_too(store: Store, tenure: Tenure) -> None:
    async def hang(lease: Lease) -> None:
        await asyncio.Event().wait()

    writing = asyncio.create_task(tenure.do(hang))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    late = tenure.lease
    await tenure.do(lambda lease: put(store, lease, 1))
    with pytest.raises(StaleFence):
        await put(store, late, 2)


async def test_what_does_no_harm_needs_no_new_fence(store: Store, tenure: Tenure) -> None:
    late = await unanswered(tenure, harmless=True)
    await tenure.do(lambda lease: put(store, lease, 1))
    assert tenure.lease == late


async def test_what_was_asked_under_the_fence_before_is_asked_again(
    store: Store, tenure: Tenure
) -> None:
    taken = asyncio.Event()

    async def slow(lease: Lease) -> Written:
        await taken.wait()
        return await put(store, lease, 1)

    writing = asyncio.create_task(tenure.do(slow))
    await asyncio.sleep(0)
    before = tenure.lease
    await tenure.take()
    assert tenure.lease.fence > before.fence
    taken.set()
    assert await writing == Written(1, 0)
    with pytest.raises(StaleFence):
        await put(store, before, 2)


async def test_a_fence_of_ours_that_we_were_not_told_of(store: Store, tenure: Tenure) -> None:
    """The claim was done, its answer was lost: nobody else has the session."""
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, hold_s=60)
    used: list[Lease] = []

    async def write(lease: Lease) -> None:
        used.append(lease)
        await put(store, lease, 1)

    await asyncio.gather(*(tenure.do(write) for _ in range(5)))
    assert tenure.lease.fence > ghost.fence
    assert used == 5 * [used[0]] + 5 * [tenure.lease], "taken once for all that wait"
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, hold_s=60)
    await tenure.take()
    assert tenure.lease.fence > ghost.fence


async def test_somebody_else_is_not_thrown_out(store: Store, tenure: Tenure) -> None:
    theirs = await store.claim(tenure.lease.session, "gate-2", hold_s=60)
    for call in (lambda: tenure.do(lambda lease: put(store, lease, 1)), tenure.take):
        with pytest.raises(StaleFence) as caught:
            await call()
        assert caught.value.owner == "gate-2"
    await put(store, theirs, 3)


async def test_who_has_left_does_not_come_back(store: Store, tenure: Tenure) -> None:
    ghost = await store.claim(tenure.lease.session, tenure.lease.owner, hold_s=60)
    tenure.leave()
    for call in (lambda: tenure.do(lambda lease: put(store, lease, 1)), tenure.take):
        with pytest.raises(StaleFence):
            await call()
    await put(store, ghost, 3)


async def test_what_is_over_is_not_taken(store: Store, tenure: Tenure) -> None:
    await store.close(tenure.lease)
    with pytest.raises(UnknownSession):
        await tenure.take()

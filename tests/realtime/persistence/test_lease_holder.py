"""Tests of lease_holder: the fencing token of a session, valid until another gateway claims it.

A claim whose reply was lost does not end the lease_holder, and a write without a reply cannot
overwrite a later one.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.persistence.lease_holder import LeaseHolder
from continuo.realtime.store import (
    LeaseLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
    open_store,
)
from tests.support.store_records import make_entry, new_session


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await open_store("sqlite://:memory:")
    yield store
    await store.aclose()


@pytest.fixture
async def lease_holder(store: Store) -> LeaseHolder:
    return LeaseHolder(store, await store.create(new_session()), 60)


async def write_entry(store: Store, lease: SessionLease, n: int) -> WriteResult:
    written = await store.write(lease, WriteBatch(kept_entries=0, entries=(make_entry(n),)))
    assert isinstance(written, WriteResult)
    return written


async def send_without_reply(lease_holder: LeaseHolder, *, harmless: bool = False) -> SessionLease:
    """Run a call whose reply is lost. Returns the lease under which it was sent."""
    sent: list[SessionLease] = []

    async def send(lease: SessionLease) -> None:
        sent.append(lease)
        raise StoreUnavailable("no reply")

    with pytest.raises(StoreUnavailable):
        await lease_holder.run(send, harmless_when_late=harmless)
    return sent[0]


async def test_late_write_is_refused_after_a_later_write(
    store: Store, lease_holder: LeaseHolder
) -> None:
    late = await send_without_reply(lease_holder)
    await lease_holder.run(lambda lease: write_entry(store, lease, 1))
    with pytest.raises(LeaseLost):
        await write_entry(store, late, 2)
    found = await store.load(lease_holder.lease.session)
    assert found is not None
    assert found.entries == (make_entry(1),)


async def test_late_write_of_a_cancelled_call_is_refused(
    store: Store, lease_holder: LeaseHolder
) -> None:
    async def hang(lease: SessionLease) -> None:
        await asyncio.Event().wait()

    writing = asyncio.create_task(lease_holder.run(hang))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    late = lease_holder.lease
    await lease_holder.run(lambda lease: write_entry(store, lease, 1))
    with pytest.raises(LeaseLost):
        await write_entry(store, late, 2)


async def test_call_harmless_when_late_needs_no_new_fence(
    store: Store, lease_holder: LeaseHolder
) -> None:
    late = await send_without_reply(lease_holder, harmless=True)
    await lease_holder.run(lambda lease: write_entry(store, lease, 1))
    assert lease_holder.lease == late


async def test_call_under_an_older_fence_is_sent_again_under_the_new_one(
    store: Store, lease_holder: LeaseHolder
) -> None:
    claimed = asyncio.Event()

    async def slow(lease: SessionLease) -> WriteResult:
        await claimed.wait()
        return await write_entry(store, lease, 1)

    writing = asyncio.create_task(lease_holder.run(slow))
    await asyncio.sleep(0)
    old_lease = lease_holder.lease
    await lease_holder.claim()
    assert lease_holder.lease.fence > old_lease.fence
    claimed.set()
    assert await writing == WriteResult(1, 0)
    with pytest.raises(LeaseLost):
        await write_entry(store, old_lease, 2)


async def test_claim_whose_reply_was_lost_is_superseded_by_the_same_owner(
    store: Store, lease_holder: LeaseHolder
) -> None:
    """The store has a newer fence of the same owner, so the next call claims the session again."""
    unknown_claim = await store.claim(
        lease_holder.lease.session, lease_holder.lease.owner, ttl_s=60
    )
    used: list[SessionLease] = []

    async def write(lease: SessionLease) -> None:
        used.append(lease)
        await write_entry(store, lease, 1)

    await asyncio.gather(*(lease_holder.run(write) for _ in range(5)))
    assert lease_holder.lease.fence > unknown_claim.fence
    assert used == 5 * [used[0]] + 5 * [lease_holder.lease], "claimed once for all waiting calls"
    unknown_claim = await store.claim(
        lease_holder.lease.session, lease_holder.lease.owner, ttl_s=60
    )
    await lease_holder.claim()
    assert lease_holder.lease.fence > unknown_claim.fence


async def test_claim_does_not_supersede_another_owner(
    store: Store, lease_holder: LeaseHolder
) -> None:
    other_lease = await store.claim(lease_holder.lease.session, "gate-2", ttl_s=60)
    for call in (
        lambda: lease_holder.run(lambda lease: write_entry(store, lease, 1)),
        lease_holder.claim,
    ):
        with pytest.raises(LeaseLost) as caught:
            await call()
        assert caught.value.owner == "gate-2"
    await write_entry(store, other_lease, 3)


async def test_stopped_ownership_does_not_claim_again(
    store: Store, lease_holder: LeaseHolder
) -> None:
    unknown_claim = await store.claim(
        lease_holder.lease.session, lease_holder.lease.owner, ttl_s=60
    )
    lease_holder.stop()
    for call in (
        lambda: lease_holder.run(lambda lease: write_entry(store, lease, 1)),
        lease_holder.claim,
    ):
        with pytest.raises(LeaseLost):
            await call()
    await write_entry(store, unknown_claim, 3)


async def test_deleted_session_cannot_be_claimed(store: Store, lease_holder: LeaseHolder) -> None:
    await store.delete(lease_holder.lease)
    with pytest.raises(SessionNotFound):
        await lease_holder.claim()

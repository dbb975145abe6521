"""The contract of every store: SQLite in a file, SQLite in memory, and Redis."""

import asyncio

import msgspec
import pytest

from continuo.realtime.store import (
    DuplicateWrite,
    IdempotencyConflict,
    IdempotentRequest,
    LeaseLost,
    LogEnd,
    ResponseNotFound,
    RunningResponse,
    SessionDataLost,
    SessionEnded,
    SessionExists,
    SessionLease,
    SessionNotFound,
    Store,
    StoredEvents,
    StoredResponse,
    StoreReplaced,
    TokenBatch,
    WriteBatch,
    WriteResult,
    keys,
    open_store,
    sweep_overdue,
)
from tests.support.redis_process import RedisProcess
from tests.support.store_records import append_entries, make_entry, new_session, response_checkpoint

# ---------------------------------------------------------------- sessions


async def test_created_session_is_found_and_loaded(store: Store) -> None:
    new = new_session(secret=b"\0\xff" * 16, state=b"settings")
    lease = await store.create(new)
    metadata = await store.find(new.id)
    snapshot = await store.load(new.id)
    assert metadata is not None
    assert snapshot is not None
    assert (metadata.id, metadata.tenant, metadata.secret) == (new.id, "acme", new.secret)
    assert (metadata.owner, metadata.fence, metadata.epoch) == ("gate-1", lease.fence, 0)
    assert (metadata.entry_count, metadata.is_parked) == (0, False)
    assert metadata.deadline_ms - metadata.created_ms == pytest.approx(3_600_000, abs=1000)
    assert snapshot.metadata == metadata
    assert snapshot.state == b"settings"
    assert (snapshot.entries, snapshot.running_responses, snapshot.events) == (
        (),
        (),
        StoredEvents(),
    )


async def test_unknown_session_is_not_found(store: Store) -> None:
    assert await store.find("sess_none") is None
    assert await store.load("sess_none") is None
    with pytest.raises(SessionNotFound):
        await store.claim("sess_none", "gate-2", ttl_s=60)
    with pytest.raises(SessionNotFound):
        await store.write(SessionLease("sess_none", "gate-1", 1, store.epoch), WriteBatch())


async def test_create_repeated_by_the_owner_returns_the_same_lease(store: Store) -> None:
    new = new_session(secret=b"s")
    assert await store.create(new) == await store.create(new)


async def test_create_with_the_id_of_another_owner_is_refused(store: Store) -> None:
    new = new_session()
    await store.create(new)
    with pytest.raises(SessionExists):
        await store.create(new_session(id=new.id, owner="gate-2"))


FULL_BATCH = WriteBatch(
    kept_entries=0,
    entries=(make_entry(1),),
    started_responses=(response_checkpoint(),),
    events=StoredEvents(0, (b"e",)),
)


async def check_is_deleted(store: Store, lease: SessionLease) -> None:
    """Check that the session is not found and that no lease of it can restore it."""
    assert await store.find(lease.session) is None
    assert await store.load(lease.session) is None
    with pytest.raises(SessionNotFound):
        await store.claim(lease.session, lease.owner, ttl_s=60)
    with pytest.raises(SessionNotFound):
        await store.force_delete(lease.session)
    for refused in (
        store.create(new_session(id=lease.session, owner=lease.owner)),
        store.write(lease, FULL_BATCH),
        store.journal(lease, "resp_1", 0, (1,)),
        store.find_result(lease, IdempotentRequest("event_1", b"content")),
        store.extend_deadline(lease, 60, is_parked=True),
        store.confirm(lease),
    ):
        with pytest.raises(SessionEnded):
            await refused
    await store.delete(lease)
    assert await store.find(lease.session) is None


async def test_deleted_session_stays_deleted(store: Store) -> None:
    new = new_session()
    stale = await store.create(new)
    lease = await store.claim(new.id, "gate-2", ttl_s=60)
    await store.write(lease, FULL_BATCH)
    await store.delete(lease)
    await store.delete(lease)
    await check_is_deleted(store, lease)
    await check_is_deleted(store, stale)


async def test_confirm_compares_the_end_of_the_session(store: Store) -> None:
    lease = await store.create(new_session())
    await store.confirm(lease, LogEnd(0, 0))
    await store.write(lease, FULL_BATCH)
    await store.confirm(lease, LogEnd(1, 1))
    await store.confirm(lease)
    for other in (LogEnd(0, 0), LogEnd(0, 1), LogEnd(2, 1), LogEnd(1, 2)):
        with pytest.raises(SessionDataLost):
            await store.confirm(lease, other)
    await store.claim(lease.session, "gate-2", ttl_s=60)
    with pytest.raises(LeaseLost):
        await store.confirm(lease, LogEnd(0, 0))


async def test_force_delete_deletes_the_session_of_another_owner(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(lease, FULL_BATCH)
    assert await store.force_delete(lease.session) > lease.fence
    await check_is_deleted(store, lease)
    with pytest.raises(SessionNotFound):
        await store.force_delete("sess_none")


async def test_tombstone_of_a_deleted_session_expires(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "TOMBSTONE_S", 0.0)
    lease = await store.create(new_session())
    await store.delete(lease)
    async with asyncio.timeout(30):
        while True:
            assert lease.session not in (await store.sweep(1000)).expired, (
                "a tombstone is not swept as a session"
            )
            try:
                await store.confirm(lease)
            except SessionEnded:
                await asyncio.sleep(0.01)
            except SessionNotFound:
                break


async def test_confirm_succeeds_until_another_owner_claims(store: Store) -> None:
    lease = await store.create(new_session())
    await store.confirm(lease)
    other = await store.claim(lease.session, "gate-2", ttl_s=60)
    with pytest.raises(LeaseLost):
        await store.confirm(lease)
    await store.confirm(other)


# ---------------------------------------------------------------- ownership


async def test_claim_fences_off_the_previous_owner(store: Store) -> None:
    new = new_session(secret=b"first")
    first = await store.create(new)
    second = await store.claim(new.id, "gate-2", ttl_s=60)
    assert second.fence > first.fence
    for refused in (
        store.write(first, WriteBatch(kept_entries=0, entries=(make_entry(1),))),
        store.journal(first, "resp_1", 0, (1,)),
        store.extend_deadline(first, 60, is_parked=True),
        store.delete(first),
    ):
        with pytest.raises(LeaseLost) as caught:
            await refused
        assert caught.value.owner == "gate-2"
    metadata = await store.find(new.id)
    assert metadata is not None
    assert (metadata.owner, metadata.secret, metadata.entry_count, metadata.is_parked) == (
        "gate-2",
        b"first",
        0,
        False,
    )
    await append_entries(store, second, 0, make_entry(1))


async def test_claim_by_the_same_owner_fences_off_its_older_lease(store: Store) -> None:
    new = new_session()
    first = await store.create(new)
    second = await store.claim(new.id, "gate-1", ttl_s=60)
    with pytest.raises(LeaseLost):
        await append_entries(store, first, 0, make_entry(1))
    await append_entries(store, second, 0, make_entry(1))


async def test_claim_with_an_outdated_expected_fence_is_refused(store: Store) -> None:
    new = new_session()
    first = await store.create(new)
    second = await store.claim(new.id, "gate-2", ttl_s=60, expected_fence=first.fence)
    assert second.fence > first.fence
    with pytest.raises(LeaseLost) as caught:
        await store.claim(new.id, "gate-3", ttl_s=60, expected_fence=first.fence)
    assert caught.value.owner == "gate-2"
    metadata = await store.find(new.id)
    assert metadata is not None
    assert (metadata.owner, metadata.fence) == ("gate-2", second.fence)
    await append_entries(store, second, 0, make_entry(1))
    await store.delete(second)
    with pytest.raises(SessionNotFound):
        await store.claim(new.id, "gate-3", ttl_s=60, expected_fence=second.fence)


async def test_one_of_many_claims_with_the_same_expected_fence_succeeds(store: Store) -> None:
    new = new_session()
    first = await store.create(new)
    claims = [
        store.claim(new.id, f"gate-{n}", ttl_s=60, expected_fence=first.fence) for n in range(50)
    ]
    results = await asyncio.gather(*claims, return_exceptions=True)
    (lease,) = (result for result in results if isinstance(result, SessionLease))
    assert sum(isinstance(result, LeaseLost) for result in results) == 49
    await append_entries(store, lease, 0, make_entry(1))


async def test_lease_with_a_fence_unknown_to_the_store_means_data_loss(store: Store) -> None:
    lease = await store.create(new_session())
    ahead = SessionLease(lease.session, lease.owner, lease.fence + 1_000_000, lease.store_epoch)
    with pytest.raises(SessionDataLost):
        await append_entries(store, ahead, 0, make_entry(1))


async def test_lease_of_another_store_epoch_is_refused_as_replaced(store: Store) -> None:
    lease = await store.create(new_session())
    other = SessionLease(lease.session, lease.owner, lease.fence, "another")
    with pytest.raises(StoreReplaced):
        await append_entries(store, other, 0, make_entry(1))


async def test_only_the_highest_fence_of_many_claims_can_write(store: Store) -> None:
    new = new_session()
    await store.create(new)
    claims = [store.claim(new.id, f"gate-{n}", ttl_s=60) for n in range(50)]
    leases = await asyncio.gather(*claims)
    assert len({lease.fence for lease in leases}) == 50
    writers: list[SessionLease] = []
    for lease in leases:
        try:
            await append_entries(store, lease, 0, make_entry(lease.fence % 1000))
        except LeaseLost:
            continue
        writers.append(lease)
    assert writers == [max(leases, key=lambda lease: lease.fence)]


async def test_concurrent_claims_and_writes_are_ordered_by_fence(store: Store) -> None:
    """The log has the entries of exactly the acknowledged writes, in the order of their fences."""
    new = new_session()
    await store.create(new)

    async def race(n: int) -> tuple[int, bool]:
        lease = await store.claim(new.id, f"gate-{n}", ttl_s=60)
        await asyncio.sleep(0)
        found = await store.find(new.id)
        assert found is not None
        try:
            await append_entries(store, lease, found.entry_count, str(lease.fence).encode())
        except LeaseLost:
            return lease.fence, False
        return lease.fence, True

    results = await asyncio.gather(*(race(n) for n in range(30)))
    snapshot = await store.load(new.id)
    assert snapshot is not None
    acknowledged = sorted(fence for fence, won in results if won)
    assert [int(entry) for entry in snapshot.entries] == acknowledged
    assert max(fence for fence, _ in results) in acknowledged


# ---------------------------------------------------------------- the log


async def test_appended_entries_are_loaded(store: Store) -> None:
    lease = await store.create(new_session())
    every_byte = bytes(range(256))
    assert await append_entries(store, lease, 0, make_entry(1, 2), b"") == WriteResult(2, 0)
    assert await append_entries(store, lease, 2, every_byte) == WriteResult(3, 0)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1, 2), b"", every_byte)
    assert snapshot.metadata.entry_count == 3


async def test_repeated_write_is_applied_once(store: Store) -> None:
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    change = WriteBatch(
        kept_entries=1,
        entries=(make_entry(2), make_entry(3)),
        events=StoredEvents(0, (b"a", b"b")),
        epoch=4,
    )
    assert await store.write(lease, change) == await store.write(lease, change) == WriteResult(3, 2)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1), make_entry(2), make_entry(3))
    assert snapshot.events == StoredEvents(0, (b"a", b"b"))


async def test_truncating_write_replaces_later_entries_epoch_and_state(store: Store) -> None:
    lease = await store.create(new_session(state=b"old"))
    await append_entries(store, lease, 0, make_entry(1), make_entry(2), make_entry(3))
    change = WriteBatch(kept_entries=1, entries=(make_entry(9),), epoch=1, state=b"new")
    assert await store.write(lease, change) == WriteResult(2, 0)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert (snapshot.entries, snapshot.metadata.epoch) == ((make_entry(1), make_entry(9)), 1)
    assert snapshot.state == b"new"
    assert await store.write(lease, WriteBatch(kept_entries=0)) == WriteResult(0, 0)


async def test_write_after_a_gap_is_refused_as_a_whole(store: Store) -> None:
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    hole = WriteBatch(
        kept_entries=2,
        entries=(make_entry(2),),
        epoch=9,
        request=IdempotentRequest("k", b"c"),
        started_responses=(response_checkpoint(),),
    )
    with pytest.raises(SessionDataLost):
        await store.write(lease, hole)
    with pytest.raises(SessionDataLost):
        await store.write(
            lease, WriteBatch(kept_entries=1, events=StoredEvents(1, (b"e",)), epoch=9)
        )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert (snapshot.entries, snapshot.metadata.epoch, snapshot.running_responses) == (
        (make_entry(1),),
        0,
        (),
    )
    healed = WriteBatch(
        kept_entries=1, entries=(make_entry(2),), request=IdempotentRequest("k", b"c")
    )
    assert await store.write(lease, healed) == WriteResult(2, 0)


# ---------------------------------------------------------------- idempotency keys


WHOLE_SESSION = WriteBatch(
    kept_entries=0,
    entries=(make_entry(1), make_entry(2)),
    epoch=3,
    state=b"settings",
    restored_requests=(IdempotentRequest("event_1", b"content", b"item_1"),),
    started_responses=(response_checkpoint(),),
    events=StoredEvents(0, (b"e", b"f")),
)


def lease_of_lost_store(session: str, owner: str = "gate-1", fence: int = 5) -> SessionLease:
    return SessionLease(session, owner, fence, "a lost store")


async def test_recreated_session_has_all_that_it_had(store: Store) -> None:
    new = new_session(secret=b"\0\xff")
    lost = lease_of_lost_store(new.id)
    lease = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=0)
    assert (lease.owner, lease.store_epoch) == (lost.owner, store.epoch)
    assert lease.fence > lost.fence
    found = await store.load(new.id)
    assert found is not None
    metadata = found.metadata
    assert (metadata.tenant, metadata.secret) == (new.tenant, new.secret)
    assert (metadata.owner, metadata.fence, metadata.epoch) == (lease.owner, lease.fence, 3)
    assert (found.entries, found.state) == (WHOLE_SESSION.entries, b"settings")
    assert found.running_responses == (RunningResponse(response_checkpoint()),)
    assert found.events == WHOLE_SESSION.events
    assert metadata.deadline_ms - metadata.created_ms == pytest.approx(3_600_000, abs=1000)
    (request,) = WHOLE_SESSION.restored_requests
    assert await store.find_result(lease, request) == b"item_1"
    assert await append_entries(store, lease, 2, make_entry(3)) == WriteResult(3, 2)


async def test_fence_of_a_recreated_session_is_higher_than_the_one_before(store: Store) -> None:
    """Also if the clock of the store is behind that of the one before."""
    new, fence = new_session(), 9_000_000_000_000
    lost = lease_of_lost_store(new.id, fence=fence)
    lease = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=0)
    assert lease.fence > fence


async def test_late_call_does_not_recreate_a_session_again(store: Store) -> None:
    new = new_session()
    lost = lease_of_lost_store(new.id)
    lease = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=0)
    await append_entries(store, lease, 2, make_entry(3))
    for expected_fence in (0, lease.fence - 1):
        with pytest.raises(SessionExists):
            await store.recreate(lost, new, WHOLE_SESSION, expected_fence=expected_fence)
    unknown = new_session()
    unknown_lease = lease_of_lost_store(unknown.id)
    with pytest.raises(SessionNotFound):
        await store.recreate(unknown_lease, unknown, WHOLE_SESSION, expected_fence=1)
    again = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=lease.fence)
    assert again.fence > lease.fence
    with pytest.raises(LeaseLost):
        await store.confirm(lease)
    found = await store.load(new.id)
    assert found is not None
    assert (found.entries, found.events) == (WHOLE_SESSION.entries, WHOLE_SESSION.events)


async def test_deleted_session_is_not_recreated(store: Store) -> None:
    lease = await store.create(new_session())
    await store.delete(lease)
    for expected_fence in (0, lease.fence):
        with pytest.raises(SessionEnded):
            await store.recreate(
                lease_of_lost_store(lease.session, fence=lease.fence + 1),
                new_session(id=lease.session),
                WHOLE_SESSION,
                expected_fence=expected_fence,
            )


async def test_session_that_another_gateway_has_created_is_not_recreated(store: Store) -> None:
    lease = await store.create(new_session(owner="gate-2"))
    lost = lease_of_lost_store(lease.session, fence=lease.fence)
    for expected_fence in (0, lease.fence):
        with pytest.raises(LeaseLost, match="gate-2"):
            await store.recreate(
                lost,
                new_session(id=lease.session),
                WHOLE_SESSION,
                expected_fence=expected_fence,
            )
    await store.confirm(lease)


async def test_older_copy_of_another_gateway_is_replaced(store: Store) -> None:
    """A file that was replaced by a backup has sessions of an earlier process."""
    older = await store.create(new_session(owner="gate-2"))
    new = new_session(id=older.session)
    lost = lease_of_lost_store(new.id, fence=older.fence + 1)
    with pytest.raises(SessionExists):
        await store.recreate(lost, new, WHOLE_SESSION, expected_fence=0)
    lease = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=older.fence)
    await store.confirm(lease)
    with pytest.raises(LeaseLost):
        await store.confirm(older)


async def test_expired_session_is_recreated(store: Store) -> None:
    lease = await store.create(new_session(owner="gate-2"))
    await store.extend_deadline(lease, 0, is_parked=True)
    new = new_session(id=lease.session)
    lost = lease_of_lost_store(new.id, fence=lease.fence)
    again = await store.recreate(lost, new, WHOLE_SESSION, expected_fence=0)
    await store.confirm(again)


async def test_last_owner_replaces_what_an_earlier_one_has_recreated(redis: RedisProcess) -> None:
    """The gateway with the higher fence wins, in either order, even if the copy of the other one
    was claimed meanwhile."""
    store = await open_store(redis.url)
    for is_earlier_first, is_claimed in ((True, False), (True, True), (False, False)):
        new = new_session()
        earlier = lease_of_lost_store(new.id, "gate-1", 5)
        last = lease_of_lost_store(new.id, "gate-2", 6)
        last_new = new_session(id=new.id, owner="gate-2")
        entries = (make_entry(9),)
        newest = msgspec.structs.replace(WHOLE_SESSION, entries=entries)
        fence = 0
        if is_earlier_first:
            fence = (await store.recreate(earlier, new, WHOLE_SESSION, expected_fence=0)).fence
            if is_claimed:
                fence = (await store.claim(new.id, "gate-3", ttl_s=60)).fence
        lease = await store.recreate(last, last_new, newest, expected_fence=fence)
        for expected_fence in (0, lease.fence):
            with pytest.raises(LeaseLost, match="gate-2"):
                await store.recreate(earlier, new, WHOLE_SESSION, expected_fence=expected_fence)
        await store.confirm(lease)
        found = await store.load(new.id)
        assert found is not None
        assert found.entries == entries
    await store.aclose()


async def test_retry_under_an_idempotency_key_gets_the_recorded_result(store: Store) -> None:
    lease = await store.create(new_session())
    request = IdempotentRequest("event_1", b"say hello", b"\0item_1\xff")
    first = WriteBatch(kept_entries=0, entries=(make_entry(1),), request=request)
    assert await store.write(lease, first) == WriteResult(1, 0)
    retry = WriteBatch(
        kept_entries=1,
        entries=(make_entry(1),),
        epoch=5,
        request=IdempotentRequest("event_1", b"say hello", b"x"),
    )
    assert await store.write(lease, retry) == DuplicateWrite(b"\0item_1\xff")
    metadata = await store.find(lease.session)
    assert metadata is not None
    assert (metadata.entry_count, metadata.epoch) == (1, 0)


async def test_idempotency_key_is_known_to_the_next_owner(store: Store) -> None:
    lease = await store.create(new_session())
    change = WriteBatch(
        kept_entries=0, entries=(make_entry(1),), request=IdempotentRequest("event_1", b"a", b"r")
    )
    await store.write(lease, change)
    other = await store.claim(lease.session, "gate-2", ttl_s=60)
    assert await store.write(other, change) == DuplicateWrite(b"r")


async def test_idempotency_key_with_other_content_is_a_conflict(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(
        lease,
        WriteBatch(
            kept_entries=0, entries=(make_entry(1),), request=IdempotentRequest("event_1", b"a")
        ),
    )
    with pytest.raises(IdempotencyConflict) as caught:
        await store.write(
            lease,
            WriteBatch(
                kept_entries=1, entries=(make_entry(2),), request=IdempotentRequest("event_1", b"b")
            ),
        )
    assert caught.value.key == "event_1"
    metadata = await store.find(lease.session)
    assert metadata is not None
    assert metadata.entry_count == 1


async def test_idempotency_keys_are_separate_per_session(store: Store) -> None:
    for _ in range(2):
        lease = await store.create(new_session())
        change = WriteBatch(
            kept_entries=0, entries=(make_entry(1),), request=IdempotentRequest("event_1", b"a")
        )
        assert await store.write(lease, change) == WriteResult(1, 0)


async def test_find_result_returns_the_result_without_recording_the_key(store: Store) -> None:
    lease = await store.create(new_session())
    request = IdempotentRequest("event_1", b"a", b"r")
    assert await store.find_result(lease, request) is None
    assert await store.find_result(lease, request) is None, "find_result records nothing"
    await store.write(lease, WriteBatch(kept_entries=0, entries=(make_entry(1),), request=request))
    assert await store.find_result(lease, IdempotentRequest("event_1", b"a")) == b"r"
    with pytest.raises(IdempotencyConflict):
        await store.find_result(lease, IdempotentRequest("event_1", b"b"))
    await store.claim(lease.session, "gate-2", ttl_s=60)
    with pytest.raises(LeaseLost):
        await store.find_result(lease, request)


async def test_revoked_idempotency_key_can_be_used_again(store: Store) -> None:
    lease = await store.create(new_session())
    kept, revoked = IdempotentRequest("event_1", b"a", b"r"), IdempotentRequest("event_2", b"b")
    await store.write(lease, WriteBatch(kept_entries=0, entries=(make_entry(1),), request=kept))
    await store.write(lease, WriteBatch(kept_entries=1, entries=(make_entry(2),), request=revoked))
    await store.write(lease, WriteBatch(kept_entries=1, revoked_keys=("event_2", "event_3")))
    assert await store.find_result(lease, revoked) is None
    assert await store.find_result(lease, kept) == b"r"
    reused = WriteBatch(
        kept_entries=1, entries=(make_entry(3),), request=IdempotentRequest("event_2", b"c", b"s")
    )
    assert await store.write(lease, reused) == WriteResult(2, 0)
    changed = WriteBatch(
        kept_entries=2, revoked_keys=("event_2",), request=IdempotentRequest("event_2", b"d", b"t")
    )
    assert await store.write(lease, changed) == WriteResult(2, 0)
    assert await store.find_result(lease, IdempotentRequest("event_2", b"d")) == b"t"


async def test_restored_requests_are_recorded_whether_present_or_lost(store: Store) -> None:
    """The batch restores requests with a new request of its own, or without one."""
    lease = await store.create(new_session())
    present, lost, new = (IdempotentRequest(f"event_{n}", b"a", b"r%d" % n) for n in range(3))
    await store.write(lease, WriteBatch(request=present))
    await store.write(lease, WriteBatch(restored_requests=(present, lost)))
    await store.write(lease, WriteBatch(restored_requests=(present, lost), request=new))
    for n, request in enumerate((present, lost, new)):
        assert await store.find_result(lease, request) == b"r%d" % n
    await store.write(lease, WriteBatch(revoked_keys=("event_0", "event_1", "event_2")))
    for request in (present, lost, new):
        assert await store.find_result(lease, request) is None


async def test_idempotency_window_keeps_the_last_of_the_restored_requests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "IDEMPOTENCY_BYTES_MAX", 10 * 20)
    lease = await store.create(new_session())
    requests = [IdempotentRequest(f"event_{n}", b"a", b"rrr") for n in range(30)]
    await store.write(lease, WriteBatch(restored_requests=tuple(requests)))
    known = [await store.find_result(lease, request) is not None for request in requests]
    assert known[-6:] == [True] * 6
    assert known[:20] == [False] * 20


async def test_one_of_many_concurrent_writes_under_one_key_is_applied(store: Store) -> None:
    lease = await store.create(new_session())
    change = WriteBatch(
        kept_entries=0, entries=(make_entry(1),), request=IdempotentRequest("event_1", b"a", b"r")
    )
    results = await asyncio.gather(*(store.write(lease, change) for _ in range(10)))
    assert sorted(results, key=repr) == [DuplicateWrite(b"r")] * 9 + [WriteResult(1, 0)]


async def test_idempotency_window_evicts_the_oldest_key_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "IDEMPOTENCY_BYTES_MAX", 10 * 20)
    lease = await store.create(new_session())

    def change(n: int) -> WriteBatch:
        return WriteBatch(request=IdempotentRequest(f"event_{n}", b"c", b"res"))

    for n in range(30):
        assert await store.write(lease, change(n)) == WriteResult(0, 0)
    for n in range(22, 30):
        assert await store.write(lease, change(n)) == DuplicateWrite(b"res")
    assert await store.write(lease, change(0)) == WriteResult(0, 0)


# ---------------------------------------------------------------- running responses


async def test_running_response_is_loaded_with_its_journaled_ids(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    assert await store.journal(lease, "resp_1", 0, (1, 2)) == 2
    assert await store.journal(lease, "resp_1", 2, (70_000,)) == 3
    assert await store.journal(lease, "resp_1", 3, ()) == 3
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses == (RunningResponse(response_checkpoint(), (1, 2, 70_000)),)


async def test_ids_journaled_twice_are_stored_once(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    await store.journal(lease, "resp_1", 0, (1, 2))
    assert await store.journal(lease, "resp_1", 0, (1, 2)) == 2
    assert await store.journal(lease, "resp_1", 1, (2, 3, 4)) == 4
    assert await store.journal(lease, "resp_1", 1, (2, 3)) == 4
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses[0].ids == (1, 2, 3, 4)


async def test_journal_with_a_gap_or_an_unknown_response_is_refused(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    with pytest.raises(SessionDataLost):
        await store.journal(lease, "resp_1", 1, (5,))
    with pytest.raises(ResponseNotFound):
        await store.journal(lease, "resp_2", 0, (5,))


async def test_journal_all_refuses_single_batches_and_writes_the_others(store: Store) -> None:
    """A refused batch does not affect the others in the call."""
    ours, stale, ended, idle = [await store.create(new_session()) for _ in range(4)]
    for lease in (ours, stale, ended):
        await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    await store.claim(stale.session, "gate-2", ttl_s=60)
    await store.delete(ended)
    elsewhere = SessionLease(ours.session, ours.owner, ours.fence, "another store")
    batches = [
        TokenBatch(stale, "resp_1", 0, (1, 2)),
        TokenBatch(ours, "resp_1", 0, (1, 2)),
        TokenBatch(ended, "resp_1", 0, (1, 2)),
        TokenBatch(idle, "resp_1", 0, (1, 2)),
        TokenBatch(elsewhere, "resp_1", 2, (3,)),
        TokenBatch(ours, "resp_1", 3, (4,)),
        TokenBatch(ours, "resp_1", 1, (2, 70_000)),
    ]
    assert await store.journal_all(batches) == [None, 2, None, None, None, None, 3]
    assert await store.journal_all([]) == []
    for lease, ids in ((ours, (1, 2, 70_000)), (stale, ())):
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        assert snapshot.running_responses[0].ids == ids


async def test_ended_response_leaves_only_its_entry(store: Store) -> None:
    lease = await store.create(new_session())
    change = WriteBatch(
        kept_entries=0,
        entries=(make_entry(1), b"placeholder"),
        started_responses=(response_checkpoint(),),
    )
    await store.write(lease, change)
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint("resp_12"),)))
    await store.journal(lease, "resp_1", 0, (8, 9))
    await store.journal(lease, "resp_12", 0, (4,))
    await store.write(
        lease, WriteBatch(kept_entries=1, entries=(make_entry(8, 9),), ended_responses=("resp_1",))
    )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1), make_entry(8, 9))
    assert snapshot.running_responses == (RunningResponse(response_checkpoint("resp_12"), (4,)),)
    with pytest.raises(ResponseNotFound):
        await store.journal(lease, "resp_1", 2, (5,))


async def test_restarted_response_has_no_journaled_ids(store: Store) -> None:
    lease = await store.create(new_session())
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    await store.journal(lease, "resp_1", 0, (8, 9))
    await store.write(lease, WriteBatch(started_responses=(response_checkpoint(),)))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses == (RunningResponse(response_checkpoint(), ()),)


# ---------------------------------------------------------------- events


async def test_number_of_stored_events_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        keys, "EVENTS_BYTES_MAX", 1 << 20
    )  # only the number of events is bounded here
    lease = await store.create(new_session())
    bodies = tuple(f"event {n}".encode() for n in range(keys.EVENTS_MAX + 10))
    for first in range(0, len(bodies), 100):
        await store.write(
            lease, WriteBatch(events=StoredEvents(first, bodies[first : first + 100]))
        )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.events == StoredEvents(10, bodies[10:])
    assert snapshot.events.next_offset == len(bodies)


async def test_bytes_of_stored_events_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "EVENTS_BYTES_MAX", 39)
    lease = await store.create(new_session())
    await store.write(
        lease, WriteBatch(events=StoredEvents(0, (b"0" * 2, b"1!$%&/9z", b"2x?=)(7q")))
    )
    await store.write(
        lease, WriteBatch(events=StoredEvents(3, (b"3u#'*+~1", b"4o^<>|@2", b"5-_.,:;k")))
    )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.events == StoredEvents(2, (b"2x?=)(7q", b"3u#'*+~1", b"4o^<>|@2", b"5-_.,:;k"))
    await store.write(lease, WriteBatch(events=StoredEvents(6, (bytes(range(200)),))))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.events == StoredEvents(7, ())
    await store.write(lease, WriteBatch(events=StoredEvents(5, (b"again",))))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.events == StoredEvents(5, (b"again",))


# ---------------------------------------------------------------- deadlines


async def test_expired_session_is_not_found_before_the_sweep(store: Store) -> None:
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    await store.extend_deadline(lease, 0, is_parked=True)
    assert await store.find(lease.session) is None
    assert await store.load(lease.session) is None
    with pytest.raises(SessionNotFound):
        await store.claim(lease.session, "gate-2", ttl_s=60)
    assert lease.session in (await store.sweep(1000)).expired
    assert lease.session not in (await store.sweep(1000)).expired
    with pytest.raises(SessionNotFound):
        await append_entries(store, lease, 1, make_entry(2))


async def test_late_owner_keeps_an_expired_session_until_the_sweep(store: Store) -> None:
    lease = await store.create(new_session())
    await store.extend_deadline(lease, 0, is_parked=False)
    await append_entries(store, lease, 0, make_entry(1))
    await store.extend_deadline(lease, 3600, is_parked=False)
    assert lease.session not in (await store.sweep(1000)).expired
    assert await store.find(lease.session) is not None


async def test_parked_session_expires_by_the_clock_of_the_store(store: Store) -> None:
    kept = await store.create(new_session())
    parked = await store.create(new_session())
    await store.extend_deadline(kept, 3600, is_parked=True)
    await store.extend_deadline(parked, 0.3, is_parked=True)
    metadata = await store.find(parked.session)
    if metadata is not None:  # None if the machine stalled until the deadline
        assert metadata.is_parked
    swept: list[str] = []
    async with asyncio.timeout(30):
        while parked.session not in swept:
            swept += (await store.sweep(1000)).expired
            await asyncio.sleep(0.02)
    assert kept.session not in swept
    assert await store.find(kept.session) is not None


async def test_sweep_examines_at_most_the_given_number_of_sessions(store: Store) -> None:
    await store.sweep(1000)
    expired = {(await store.create(new_session(ttl_s=0))).session for _ in range(5)}
    swept = [await store.sweep(3), await store.sweep(3), await store.sweep(3)]
    assert [sweep.examined for sweep in swept] == [3, 2, 0]
    assert expired == {*swept[0].expired, *swept[1].expired}


async def test_sweep_overdue_repeats_until_nothing_is_overdue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones precede the expired sessions, and fill a sweep that yields no session."""
    monkeypatch.setattr(keys, "SWEEP_MAX", 4)
    monkeypatch.setattr(keys, "TOMBSTONE_S", 0.0)
    async for _ in sweep_overdue(store):
        pass
    for _ in range(5):
        await store.delete(await store.create(new_session()))
    overdue = {(await store.create(new_session(ttl_s=0))).session for _ in range(6)}
    sweeps = [expired async for expired in sweep_overdue(store)]
    assert len(sweeps) >= 3, "11 to examine, 4 in each sweep"
    assert overdue <= {session for expired in sweeps for session in expired}


# ---------------------------------------------------------------- archived responses


async def test_archived_response_outlives_its_session(store: Store) -> None:
    lease = await store.create(new_session())
    response = StoredResponse(
        id="resp_" + lease.session,
        tenant="acme",
        parent="resp_0",
        entries=(make_entry(1, 2), b"x" * 100),
        body=b"usage",
    )
    await store.put_response(response, 3600)
    await store.delete(lease)
    assert await store.find_response(response.id) == response
    assert await store.has_response(response.id)
    assert await store.find_response("resp_none") is None
    assert not await store.has_response("resp_none")


async def test_archived_response_expires(store: Store) -> None:
    response = StoredResponse(id="resp_" + new_session().id, tenant="acme")
    await store.put_response(response, 0.05)
    async with asyncio.timeout(30):
        while await store.find_response(response.id) is not None:
            await asyncio.sleep(0.005)
    assert not await store.has_response(response.id)
    await store.put_response(response, 60)
    await store.put_response(response, 0)
    assert await store.find_response(response.id) is None, "it is deleted at once"
    assert not await store.has_response(response.id)


async def test_check_keeps_the_store_epoch(store: Store) -> None:
    epoch = store.epoch
    await store.check()
    assert store.epoch == epoch
    assert len(epoch) == 32


async def test_call_cancelled_at_any_moment_ends_as_cancelled(store: Store) -> None:
    """Otherwise the canceller would wait for all that the task does after the call."""
    lease = await store.create(new_session())
    for turns in range(30):  # rounds of the event loop
        await store.confirm(lease)
        call = asyncio.create_task(store.confirm(lease))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() is cancelled, f"after {turns} turns"

"""What every store does: SQLite in a file and in memory, Redis."""

import asyncio

import pytest

from continuo.realtime.store import (
    DuplicateWrite,
    Entry,
    IdempotencyConflict,
    IdempotentRequest,
    OwnershipLost,
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
    sweep_overdue,
)
from tests.support.store_records import answer, append, entry, fresh_session

# ---------------------------------------------------------------- sessions


async def test_a_new_session_is_found_and_loaded(store: Store) -> None:
    new = fresh_session(secret=b"\0\xff" * 16, state=b"settings")
    lease = await store.create(new)
    card = await store.find(new.id)
    snapshot = await store.load(new.id)
    assert card is not None
    assert snapshot is not None
    assert (card.id, card.tenant, card.secret) == (new.id, "acme", new.secret)
    assert (card.owner, card.fence, card.epoch) == ("gate-1", lease.fence, 0)
    assert (card.entry_count, card.is_parked) == (0, False)
    assert card.deadline_ms - card.created_ms == pytest.approx(3_600_000, abs=1000)
    assert snapshot.metadata == card
    assert snapshot.state == b"settings"
    assert (snapshot.entries, snapshot.running_responses, snapshot.events) == (
        (),
        (),
        StoredEvents(),
    )


async def test_an_unknown_session_is_nowhere(store: Store) -> None:
    assert await store.find("sess_none") is None
    assert await store.load("sess_none") is None
    with pytest.raises(SessionNotFound):
        await store.claim("sess_none", "gate-2", ttl_s=60)
    with pytest.raises(SessionNotFound):
        await store.write(SessionLease("sess_none", "gate-1", 1, store.epoch), WriteBatch())


async def test_created_twice_by_the_same_owner_is_created_once(store: Store) -> None:
    new = fresh_session(secret=b"s")
    assert await store.create(new) == await store.create(new)


async def test_an_id_is_taken_once(store: Store) -> None:
    new = fresh_session()
    await store.create(new)
    with pytest.raises(SessionExists):
        await store.create(fresh_session(id=new.id, owner="gate-2"))


WHOLE = WriteBatch(
    kept_entries=0,
    entries=(entry(1),),
    started_responses=(answer(),),
    events=StoredEvents(0, (b"e",)),
)


async def is_over(store: Store, lease: SessionLease) -> None:
    """Nobody finds it, and nobody who had it can bring it back."""
    assert await store.find(lease.session) is None
    assert await store.load(lease.session) is None
    with pytest.raises(SessionNotFound):
        await store.claim(lease.session, lease.owner, ttl_s=60)
    with pytest.raises(SessionNotFound):
        await store.force_delete(lease.session)
    for refused in (
        store.create(fresh_session(id=lease.session, owner=lease.owner)),
        store.write(lease, WHOLE),
        store.journal(lease, "resp_1", 0, (1,)),
        store.find_result(lease, IdempotentRequest("event_1", b"content")),
        store.extend_deadline(lease, 60, is_parked=True),
        store.confirm(lease),
    ):
        with pytest.raises(SessionEnded):
            await refused
    await store.delete(lease)
    assert await store.find(lease.session) is None


async def test_a_closed_session_stays_closed(store: Store) -> None:
    new = fresh_session()
    stale = await store.create(new)
    lease = await store.claim(new.id, "gate-2", ttl_s=60)
    await store.write(lease, WHOLE)
    await store.delete(lease)
    await store.delete(lease)
    await is_over(store, lease)
    await is_over(store, stale)


async def test_somebody_ends_a_session_of_another(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(lease, WHOLE)
    assert await store.force_delete(lease.session) > lease.fence
    await is_over(store, lease)
    with pytest.raises(SessionNotFound):
        await store.force_delete("sess_none")


async def test_that_a_session_was_ended_is_forgotten_in_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "TOMBSTONE_S", 0.0)
    lease = await store.create(fresh_session())
    await store.delete(lease)
    async with asyncio.timeout(30):
        while True:
            assert lease.session not in (await store.sweep(1000)).expired, (
                "it was no session any more"
            )
            try:
                await store.confirm(lease)
            except SessionEnded:
                await asyncio.sleep(0.01)
            except SessionNotFound:
                break


async def test_a_lease_is_confirmed_while_it_holds(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.confirm(lease)
    other = await store.claim(lease.session, "gate-2", ttl_s=60)
    with pytest.raises(OwnershipLost):
        await store.confirm(lease)
    await store.confirm(other)


# ---------------------------------------------------------------- owners


async def test_a_claim_fences_off_the_owner_before(store: Store) -> None:
    new = fresh_session()
    first = await store.create(new)
    second = await store.claim(new.id, "gate-2", ttl_s=60, secret=b"other")
    assert second.fence > first.fence
    for refused in (
        store.write(first, WriteBatch(kept_entries=0, entries=(entry(1),))),
        store.journal(first, "resp_1", 0, (1,)),
        store.extend_deadline(first, 60, is_parked=True),
        store.delete(first),
    ):
        with pytest.raises(OwnershipLost) as caught:
            await refused
        assert caught.value.owner == "gate-2"
    card = await store.find(new.id)
    assert card is not None
    assert (card.owner, card.secret, card.entry_count, card.is_parked) == (
        "gate-2",
        b"other",
        0,
        False,
    )
    await append(store, second, 0, entry(1))


async def test_the_same_owner_fences_off_itself(store: Store) -> None:
    new = fresh_session()
    first = await store.create(new)
    second = await store.claim(new.id, "gate-1", ttl_s=60)
    with pytest.raises(OwnershipLost):
        await append(store, first, 0, entry(1))
    await append(store, second, 0, entry(1))


async def test_a_claim_of_what_has_changed_hands_since_takes_nothing(store: Store) -> None:
    new = fresh_session()
    first = await store.create(new)
    second = await store.claim(new.id, "gate-2", ttl_s=60, expected_fence=first.fence)
    assert second.fence > first.fence
    with pytest.raises(OwnershipLost) as caught:
        await store.claim(new.id, "gate-3", ttl_s=60, expected_fence=first.fence, secret=b"other")
    assert caught.value.owner == "gate-2"
    card = await store.find(new.id)
    assert card is not None
    assert (card.owner, card.fence, card.secret) == ("gate-2", second.fence, new.secret)
    await append(store, second, 0, entry(1))
    await store.delete(second)
    with pytest.raises(SessionNotFound):
        await store.claim(new.id, "gate-3", ttl_s=60, expected_fence=second.fence)


async def test_of_many_who_have_seen_the_same_one_takes_it(store: Store) -> None:
    new = fresh_session()
    first = await store.create(new)
    claims = [
        store.claim(new.id, f"gate-{n}", ttl_s=60, expected_fence=first.fence) for n in range(50)
    ]
    got = await asyncio.gather(*claims, return_exceptions=True)
    (lease,) = (one for one in got if isinstance(one, SessionLease))
    assert sum(isinstance(one, OwnershipLost) for one in got) == 49
    await append(store, lease, 0, entry(1))


async def test_a_claim_keeps_the_secret_unless_told(store: Store) -> None:
    new = fresh_session(secret=b"first")
    await store.create(new)
    await store.claim(new.id, "gate-2", ttl_s=60)
    card = await store.find(new.id)
    assert card is not None
    assert card.secret == b"first"


async def test_the_store_says_so_when_it_has_forgotten_a_claim(store: Store) -> None:
    lease = await store.create(fresh_session())
    ahead = SessionLease(lease.session, lease.owner, lease.fence + 1_000_000, lease.store_epoch)
    with pytest.raises(SessionDataLost):
        await append(store, ahead, 0, entry(1))


async def test_a_lease_of_another_store_is_told_that_it_is_lost(store: Store) -> None:
    lease = await store.create(fresh_session())
    other = SessionLease(lease.session, lease.owner, lease.fence, "another")
    with pytest.raises(StoreReplaced):
        await append(store, other, 0, entry(1))


async def test_of_many_claimers_one_can_write(store: Store) -> None:
    new = fresh_session()
    await store.create(new)
    claims = [store.claim(new.id, f"gate-{n}", ttl_s=60) for n in range(50)]
    leases = await asyncio.gather(*claims)
    assert len({lease.fence for lease in leases}) == 50
    wrote: list[SessionLease] = []
    for lease in leases:
        try:
            await append(store, lease, 0, entry(lease.fence % 1000))
        except OwnershipLost:
            continue
        wrote.append(lease)
    assert wrote == [max(leases, key=lambda lease: lease.fence)]


async def test_claims_and_writes_at_once_leave_one_writer(store: Store) -> None:
    """Whoever was told that it wrote had the fence of its time: the log is the winners' in order
    of their fences."""
    new = fresh_session()
    await store.create(new)

    async def race(n: int) -> tuple[int, bool]:
        lease = await store.claim(new.id, f"gate-{n}", ttl_s=60)
        await asyncio.sleep(0)
        found = await store.find(new.id)
        assert found is not None
        try:
            await append(store, lease, found.entry_count, Entry(str(lease.fence).encode()))
        except OwnershipLost:
            return lease.fence, False
        return lease.fence, True

    results = await asyncio.gather(*(race(n) for n in range(30)))
    snapshot = await store.load(new.id)
    assert snapshot is not None
    wrote = sorted(fence for fence, won in results if won)
    assert [int(entry.body) for entry in snapshot.entries] == wrote
    assert max(fence for fence, _ in results) in wrote


# ---------------------------------------------------------------- the log


async def test_what_is_appended_is_loaded(store: Store) -> None:
    lease = await store.create(fresh_session())
    wide = Entry(b"wide", (0, 65_535, 65_536, (1 << 24) - 1, 1 << 24, (1 << 31) - 1))
    assert await append(store, lease, 0, entry(1, 2), Entry(b"")) == WriteResult(2, 0)
    assert await append(store, lease, 2, wide) == WriteResult(3, 0)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (entry(1, 2), Entry(b""), wide)
    assert snapshot.metadata.entry_count == 3


async def test_the_same_write_twice_is_one_write(store: Store) -> None:
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    change = WriteBatch(
        kept_entries=1, entries=(entry(2), entry(3)), events=StoredEvents(0, (b"a", b"b")), epoch=4
    )
    assert await store.write(lease, change) == await store.write(lease, change) == WriteResult(3, 2)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (entry(1), entry(2), entry(3))
    assert snapshot.events == StoredEvents(0, (b"a", b"b"))


async def test_a_cut_forgets_what_follows_and_steps_the_epoch(store: Store) -> None:
    lease = await store.create(fresh_session(state=b"old"))
    await append(store, lease, 0, entry(1), entry(2), entry(3))
    change = WriteBatch(kept_entries=1, entries=(entry(9),), epoch=1, state=b"new")
    assert await store.write(lease, change) == WriteResult(2, 0)
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert (snapshot.entries, snapshot.metadata.epoch) == ((entry(1), entry(9)), 1)
    assert snapshot.state == b"new"
    assert await store.write(lease, WriteBatch(kept_entries=0)) == WriteResult(0, 0)


async def test_a_write_behind_a_hole_is_refused_whole(store: Store) -> None:
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    hole = WriteBatch(
        kept_entries=2,
        entries=(entry(2),),
        epoch=9,
        request=IdempotentRequest("k", b"c"),
        started_responses=(answer(),),
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
        (entry(1),),
        0,
        (),
    )
    healed = WriteBatch(kept_entries=1, entries=(entry(2),), request=IdempotentRequest("k", b"c"))
    assert await store.write(lease, healed) == WriteResult(2, 0)


# ---------------------------------------------------------------- once


async def test_a_repeated_id_gets_the_first_result(store: Store) -> None:
    lease = await store.create(fresh_session())
    once = IdempotentRequest("event_1", b"say hello", b"\0item_1\xff")
    first = WriteBatch(kept_entries=0, entries=(entry(1),), request=once)
    assert await store.write(lease, first) == WriteResult(1, 0)
    again = WriteBatch(
        kept_entries=1,
        entries=(entry(1),),
        epoch=5,
        request=IdempotentRequest("event_1", b"say hello", b"x"),
    )
    assert await store.write(lease, again) == DuplicateWrite(b"\0item_1\xff")
    card = await store.find(lease.session)
    assert card is not None
    assert (card.entry_count, card.epoch) == (1, 0)


async def test_a_repeated_id_is_known_to_the_next_owner(store: Store) -> None:
    lease = await store.create(fresh_session())
    change = WriteBatch(
        kept_entries=0, entries=(entry(1),), request=IdempotentRequest("event_1", b"a", b"r")
    )
    await store.write(lease, change)
    other = await store.claim(lease.session, "gate-2", ttl_s=60)
    assert await store.write(other, change) == DuplicateWrite(b"r")


async def test_the_same_id_with_other_content_is_a_conflict(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(
        lease,
        WriteBatch(kept_entries=0, entries=(entry(1),), request=IdempotentRequest("event_1", b"a")),
    )
    with pytest.raises(IdempotencyConflict) as caught:
        await store.write(
            lease,
            WriteBatch(
                kept_entries=1, entries=(entry(2),), request=IdempotentRequest("event_1", b"b")
            ),
        )
    assert caught.value.key == "event_1"
    card = await store.find(lease.session)
    assert card is not None
    assert card.entry_count == 1


async def test_ids_are_a_session_s_own(store: Store) -> None:
    for _ in range(2):
        lease = await store.create(fresh_session())
        change = WriteBatch(
            kept_entries=0, entries=(entry(1),), request=IdempotentRequest("event_1", b"a")
        )
        assert await store.write(lease, change) == WriteResult(1, 0)


async def test_it_is_known_whether_something_was_asked_before(store: Store) -> None:
    lease = await store.create(fresh_session())
    once = IdempotentRequest("event_1", b"a", b"r")
    assert await store.find_result(lease, once) is None
    assert await store.find_result(lease, once) is None, "asking does not make it so"
    await store.write(lease, WriteBatch(kept_entries=0, entries=(entry(1),), request=once))
    assert await store.find_result(lease, IdempotentRequest("event_1", b"a")) == b"r"
    with pytest.raises(IdempotencyConflict):
        await store.find_result(lease, IdempotentRequest("event_1", b"b"))
    await store.claim(lease.session, "gate-2", ttl_s=60)
    with pytest.raises(OwnershipLost):
        await store.find_result(lease, once)


async def test_what_was_taken_back_can_be_asked_again(store: Store) -> None:
    lease = await store.create(fresh_session())
    kept, taken = IdempotentRequest("event_1", b"a", b"r"), IdempotentRequest("event_2", b"b")
    await store.write(lease, WriteBatch(kept_entries=0, entries=(entry(1),), request=kept))
    await store.write(lease, WriteBatch(kept_entries=1, entries=(entry(2),), request=taken))
    await store.write(lease, WriteBatch(kept_entries=1, revoked_keys=("event_2", "event_3")))
    assert await store.find_result(lease, taken) is None
    assert await store.find_result(lease, kept) == b"r"
    again = WriteBatch(
        kept_entries=1, entries=(entry(3),), request=IdempotentRequest("event_2", b"c", b"s")
    )
    assert await store.write(lease, again) == WriteResult(2, 0)
    changed = WriteBatch(
        kept_entries=2, revoked_keys=("event_2",), request=IdempotentRequest("event_2", b"d", b"t")
    )
    assert await store.write(lease, changed) == WriteResult(2, 0)
    assert await store.find_result(lease, IdempotentRequest("event_2", b"d")) == b"t"


async def test_what_was_asked_before_is_given_again(store: Store) -> None:
    """Whether it is there or not, and without anything new being asked."""
    lease = await store.create(fresh_session())
    there, lost, new = (IdempotentRequest(f"event_{n}", b"a", b"r%d" % n) for n in range(3))
    await store.write(lease, WriteBatch(request=there))
    await store.write(lease, WriteBatch(restored_requests=(there, lost)))
    await store.write(lease, WriteBatch(restored_requests=(there, lost), request=new))
    for n, once in enumerate((there, lost, new)):
        assert await store.find_result(lease, once) == b"r%d" % n
    await store.write(lease, WriteBatch(revoked_keys=("event_0", "event_1", "event_2")))
    for once in (there, lost, new):
        assert await store.find_result(lease, once) is None


async def test_the_window_has_room_for_the_last_of_what_is_given_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "IDEMPOTENCY_BYTES_MAX", 10 * 20)
    lease = await store.create(fresh_session())
    asked = [IdempotentRequest(f"event_{n}", b"a", b"rrr") for n in range(30)]
    await store.write(lease, WriteBatch(restored_requests=tuple(asked)))
    known = [await store.find_result(lease, once) is not None for once in asked]
    assert known[-6:] == [True] * 6
    assert known[:20] == [False] * 20


async def test_of_many_at_once_one_is_written(store: Store) -> None:
    lease = await store.create(fresh_session())
    change = WriteBatch(
        kept_entries=0, entries=(entry(1),), request=IdempotentRequest("event_1", b"a", b"r")
    )
    results = await asyncio.gather(*(store.write(lease, change) for _ in range(10)))
    assert sorted(results, key=repr) == [DuplicateWrite(b"r")] * 9 + [WriteResult(1, 0)]


async def test_the_window_forgets_the_oldest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "IDEMPOTENCY_BYTES_MAX", 10 * 20)
    lease = await store.create(fresh_session())

    def change(n: int) -> WriteBatch:
        return WriteBatch(request=IdempotentRequest(f"event_{n}", b"c", b"res"))

    for n in range(30):
        assert await store.write(lease, change(n)) == WriteResult(0, 0)
    for n in range(22, 30):
        assert await store.write(lease, change(n)) == DuplicateWrite(b"res")
    assert await store.write(lease, change(0)) == WriteResult(0, 0)


# ---------------------------------------------------------------- answers


async def test_an_answer_is_loaded_with_what_it_has_said(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(lease, WriteBatch(started_responses=(answer(),)))
    assert await store.journal(lease, "resp_1", 0, (1, 2)) == 2
    assert await store.journal(lease, "resp_1", 2, (70_000,)) == 3
    assert await store.journal(lease, "resp_1", 3, ()) == 3
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses == (RunningResponse(answer(), (1, 2, 70_000)),)


async def test_ids_journalled_twice_are_said_once(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(lease, WriteBatch(started_responses=(answer(),)))
    await store.journal(lease, "resp_1", 0, (1, 2))
    assert await store.journal(lease, "resp_1", 0, (1, 2)) == 2
    assert await store.journal(lease, "resp_1", 1, (2, 3, 4)) == 4
    assert await store.journal(lease, "resp_1", 1, (2, 3)) == 4
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses[0].ids == (1, 2, 3, 4)


async def test_a_journal_has_no_hole(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(lease, WriteBatch(started_responses=(answer(),)))
    with pytest.raises(SessionDataLost):
        await store.journal(lease, "resp_1", 1, (5,))
    with pytest.raises(ResponseNotFound):
        await store.journal(lease, "resp_2", 0, (5,))


async def test_many_journals_in_one_call(store: Store) -> None:
    """One that is refused is none of the others."""
    ours, stale, ended, silent = [await store.create(fresh_session()) for _ in range(4)]
    for lease in (ours, stale, ended):
        await store.write(lease, WriteBatch(started_responses=(answer(),)))
    await store.claim(stale.session, "gate-2", ttl_s=60)
    await store.delete(ended)
    elsewhere = SessionLease(ours.session, ours.owner, ours.fence, "another store")
    spoken = [
        TokenBatch(stale, "resp_1", 0, (1, 2)),
        TokenBatch(ours, "resp_1", 0, (1, 2)),
        TokenBatch(ended, "resp_1", 0, (1, 2)),
        TokenBatch(silent, "resp_1", 0, (1, 2)),
        TokenBatch(elsewhere, "resp_1", 2, (3,)),
        TokenBatch(ours, "resp_1", 3, (4,)),
        TokenBatch(ours, "resp_1", 1, (2, 70_000)),
    ]
    assert await store.journal_all(spoken) == [None, 2, None, None, None, None, 3]
    assert await store.journal_all([]) == []
    for lease, said in ((ours, (1, 2, 70_000)), (stale, ())):
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        assert snapshot.running_responses[0].ids == said


async def test_an_ended_answer_is_an_entry_and_nothing_else(store: Store) -> None:
    lease = await store.create(fresh_session())
    change = WriteBatch(
        kept_entries=0, entries=(entry(1), Entry(b"to come")), started_responses=(answer(),)
    )
    await store.write(lease, change)
    await store.write(lease, WriteBatch(started_responses=(answer("resp_12"),)))
    await store.journal(lease, "resp_1", 0, (8, 9))
    await store.journal(lease, "resp_12", 0, (4,))
    await store.write(
        lease, WriteBatch(kept_entries=1, entries=(entry(8, 9),), ended_responses=("resp_1",))
    )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (entry(1), entry(8, 9))
    assert snapshot.running_responses == (RunningResponse(answer("resp_12"), (4,)),)
    with pytest.raises(ResponseNotFound):
        await store.journal(lease, "resp_1", 2, (5,))


async def test_an_answer_begun_again_has_said_nothing(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.write(lease, WriteBatch(started_responses=(answer(),)))
    await store.journal(lease, "resp_1", 0, (8, 9))
    await store.write(lease, WriteBatch(started_responses=(answer(),)))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.running_responses == (RunningResponse(answer(), ()),)


# ---------------------------------------------------------------- events


async def test_the_last_events_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "EVENTS_BYTES_MAX", 1 << 20)  # their number is what counts here
    lease = await store.create(fresh_session())
    bodies = tuple(f"event {n}".encode() for n in range(keys.EVENTS_MAX + 10))
    for first in range(0, len(bodies), 100):
        await store.write(
            lease, WriteBatch(events=StoredEvents(first, bodies[first : first + 100]))
        )
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.events == StoredEvents(10, bodies[10:])
    assert snapshot.events.next_offset == len(bodies)


async def test_events_are_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "EVENTS_BYTES_MAX", 40)
    lease = await store.create(fresh_session())
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


async def test_a_session_whose_time_is_over_is_gone_before_it_is_swept(store: Store) -> None:
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    await store.extend_deadline(lease, 0, is_parked=True)
    assert await store.find(lease.session) is None
    assert await store.load(lease.session) is None
    with pytest.raises(SessionNotFound):
        await store.claim(lease.session, "gate-2", ttl_s=60)
    assert lease.session in (await store.sweep(1000)).expired
    assert lease.session not in (await store.sweep(1000)).expired
    with pytest.raises(SessionNotFound):
        await append(store, lease, 1, entry(2))


async def test_an_owner_that_is_late_keeps_what_nobody_has_swept(store: Store) -> None:
    lease = await store.create(fresh_session())
    await store.extend_deadline(lease, 0, is_parked=False)
    await append(store, lease, 0, entry(1))
    await store.extend_deadline(lease, 3600, is_parked=False)
    assert lease.session not in (await store.sweep(1000)).expired
    assert await store.find(lease.session) is not None


async def test_a_parked_session_expires_by_the_store_s_clock(store: Store) -> None:
    kept = await store.create(fresh_session())
    parked = await store.create(fresh_session())
    await store.extend_deadline(kept, 3600, is_parked=True)
    await store.extend_deadline(parked, 0.3, is_parked=True)
    card = await store.find(parked.session)
    if card is not None:  # unless the machine slept for so long
        assert card.is_parked
    swept: list[str] = []
    async with asyncio.timeout(30):
        while parked.session not in swept:
            swept += (await store.sweep(1000)).expired
            await asyncio.sleep(0.02)
    assert kept.session not in swept
    assert await store.find(kept.session) is not None


async def test_a_sweep_takes_no_more_than_told(store: Store) -> None:
    await store.sweep(1000)
    made = {(await store.create(fresh_session(ttl_s=0))).session for _ in range(5)}
    swept = [await store.sweep(3), await store.sweep(3), await store.sweep(3)]
    assert [one.examined for one in swept] == [3, 2, 0]
    assert made == {*swept[0].expired, *swept[1].expired}


async def test_whatever_is_overdue_goes_though_one_sweep_is_not_enough(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of ended sessions stands before them, and fills a sweep of which nobody is
    told."""
    monkeypatch.setattr(keys, "SWEEP_MAX", 4)
    monkeypatch.setattr(keys, "TOMBSTONE_S", 0.0)
    async for _ in sweep_overdue(store):
        pass
    for _ in range(5):
        await store.delete(await store.create(fresh_session()))
    made = {(await store.create(fresh_session(ttl_s=0))).session for _ in range(6)}
    sweeps = [gone async for gone in sweep_overdue(store)]
    assert len(sweeps) >= 3, "11 to look at, 4 at a time"
    assert made <= {name for gone in sweeps for name in gone}


# ---------------------------------------------------------------- responses


async def test_a_kept_response_outlives_its_session(store: Store) -> None:
    lease = await store.create(fresh_session())
    kept = StoredResponse(
        id="resp_" + lease.session,
        tenant="acme",
        parent="resp_0",
        entries=(entry(1, 2), Entry(b"x" * 100, (3,))),
        body=b"usage",
    )
    await store.put_response(kept, 3600)
    await store.delete(lease)
    assert await store.find_response(kept.id) == kept
    assert await store.find_response("resp_none") is None


async def test_a_kept_response_has_its_time(store: Store) -> None:
    kept = StoredResponse(id="resp_" + fresh_session().id, tenant="acme")
    await store.put_response(kept, 0)
    async with asyncio.timeout(30):
        while await store.find_response(kept.id) is not None:
            await asyncio.sleep(0.005)


async def test_the_store_is_still_itself(store: Store) -> None:
    epoch = store.epoch
    await store.check()
    assert store.epoch == epoch
    assert len(epoch) == 32


async def test_a_call_that_is_cancelled_ends_so_at_whatever_moment(store: Store) -> None:
    """Who waits for the end of it would wait for that of all it goes on to do."""
    lease = await store.create(fresh_session())
    for turns in range(30):  # of the event loop
        await store.confirm(lease)
        call = asyncio.create_task(store.confirm(lease))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() is cancelled, f"after {turns} turns"

"""A store that has lost its last acknowledged writes in a failover to a replica.

The owner of a session detects the loss, even if the stored log is as long as before, and writes the
session again.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import ConversationEntry, DraftPiece, encode_entry
from continuo.realtime.persistence.session_writer import (
    DesiredSession,
    SessionChanges,
    SessionWriter,
    StoredLog,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.store import (
    DuplicateWrite,
    IdempotentRequest,
    LeaseLost,
    SessionLease,
    SessionNotFound,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.engines import EngineHarness
from tests.support.in_process_client import connect_client, resume_result
from tests.support.sessions import unload
from tests.support.store_records import new_session
from tests.support.waiting import poll_until

A, B, C, D = map(DraftPiece, "abcd")


class ReplicatedStore(SqliteStore):
    """A store with a replica, to which the test copies the data and fails over."""

    file: Path
    replica: Path
    lose_reply_if_executed: bool | None = None
    """The reply to the next write is lost, and the write executed (True) or not (False)."""
    copy_first = False
    """Copy all data to the replica before the next write."""

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        if self.copy_first:
            self.copy()
            self.copy_first = False
        lose_reply_if_executed, self.lose_reply_if_executed = self.lose_reply_if_executed, None
        if lose_reply_if_executed is not False:
            written = await super().write(lease, batch)
            if lose_reply_if_executed is None:
                return written
        raise StoreUnavailable("no reply")

    def copy(self) -> None:
        _copy(self.file, self.replica)

    def fail_over(self) -> None:
        """Return to the data of the replica; writes acknowledged since the copy are lost."""
        _copy(self.replica, self.file)


def _copy(one: Path, other: Path) -> None:
    with closing(sqlite3.connect(one)) as source, closing(sqlite3.connect(other)) as target:
        source.backup(target)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ReplicatedStore]:
    store = await ReplicatedStore.open(tmp_path / "store", "normal")
    store.file, store.replica = tmp_path / "store", tmp_path / "replica"
    yield store
    await store.aclose()


@pytest.fixture
async def writer(store: ReplicatedStore) -> SessionWriter:
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    await writer.write(desired(A), SessionChanges())
    return writer


def desired(*entries: ConversationEntry, events: int = 0) -> DesiredSession:
    return DesiredSession(
        entries=entries,
        settings=GenerationSettings(),
        epoch=0,
        first_offset=0,
        next_offset=events,
        encode_events_since=lambda offset: [b"%d" % n for n in range(offset, events)],
    )


async def check_stored(
    store: ReplicatedStore, writer: SessionWriter, *entries: ConversationEntry
) -> None:
    found = await store.load(writer.lease.session)
    assert found is not None
    assert found.entries == tuple(map(encode_entry, entries))


async def test_failover_is_detected_by_a_claim_after_a_lost_reply(
    store: ReplicatedStore, writer: SessionWriter
) -> None:
    """The writer claims a new fence and finds an older one than its own in the store."""
    await writer.write(desired(A, B), SessionChanges())
    store.copy()
    await writer.claim()
    await writer.write(desired(A, C), SessionChanges())
    store.lose_reply_if_executed = False
    with pytest.raises(StoreUnavailable):
        await writer.write(desired(A, C, B), SessionChanges())
    store.fail_over()
    await writer.write(desired(A, C, D), SessionChanges())
    await check_stored(store, writer, A, C, D)


async def test_failover_to_an_unacknowledged_write_of_equal_length_is_detected(
    store: ReplicatedStore, writer: SessionWriter
) -> None:
    """The replica holds the unacknowledged write in place of the acknowledged one that followed."""
    store.lose_reply_if_executed = True
    with pytest.raises(StoreUnavailable):
        await writer.write(desired(A, B), SessionChanges())
    store.copy_first = True
    await writer.write(desired(A, C), SessionChanges())
    store.fail_over()
    await check_stored(store, writer, A, B)
    await writer.write(desired(A, C, D), SessionChanges())
    await check_stored(store, writer, A, C, D)


async def test_idempotency_keys_are_known_after_a_failover_that_lost_a_claim(
    store: ReplicatedStore, writer: SessionWriter
) -> None:
    """The store has lost a takeover, and still knows the requests from before."""
    request = IdempotentRequest("event_1", b"respond", b"resp_1")
    await writer.write(desired(A, B), SessionChanges(request=request))
    store.copy()
    new = msgspec.structs.replace(new_session(), id=writer.lease.session)
    other = SessionWriter(
        store, await store.claim(new.id, "gate-2", ttl_s=60), new, stored=StoredLog((A, B))
    )
    store.fail_over()
    assert await other.find_result(request) == b"resp_1"
    await other.write(desired(A, C), SessionChanges())
    await check_stored(store, other, A, C)


async def test_lost_idempotency_keys_are_written_again_after_a_failover(
    store: ReplicatedStore,
) -> None:
    """Otherwise a retry of the client on another gateway would be executed again."""
    recorded: dict[str, IdempotentRequest] = {}
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new, completed_requests=recorded)
    await writer.write(desired(A), SessionChanges())
    keys = IdempotencyKeys(writer, recorded, is_complete=True)
    store.copy()
    request = IdempotentRequest("event_1", b"respond", b"resp_1")
    await writer.write(desired(A, B), SessionChanges(request=request))
    keys.record(request)
    store.fail_over()
    await writer.write(
        desired(A, B, C), SessionChanges(request=IdempotentRequest("event_2", b"append"))
    )
    await check_stored(store, writer, A, B, C)
    assert await store.find_result(writer.lease, request) == b"resp_1"
    await writer.write(desired(A, B, C, D), SessionChanges())
    assert await store.find_result(writer.lease, request) == b"resp_1"


async def test_confirm_after_a_failover_fences_out_the_previous_owner(
    store: ReplicatedStore,
) -> None:
    """After the failover, the store takes a stalled gateway for the owner again."""
    new = new_session()
    stalled = await store.create(new)
    store.copy()
    writer = SessionWriter(store, await store.claim(new.id, "gate-2", ttl_s=60), new)
    store.fail_over()
    await store.confirm(stalled)
    await writer.confirm()
    with pytest.raises(LeaseLost):
        await store.confirm(stalled)


@pytest.mark.parametrize("lost", [(A, B, C), (A,), (A, B)])
async def test_confirm_detects_the_loss_of_the_last_write(
    store: ReplicatedStore, writer: SessionWriter, lost: tuple[DraftPiece, ...]
) -> None:
    """The replica has fewer entries, more of them, or as many and fewer events."""
    await writer.write(desired(*lost, events=1), SessionChanges())
    store.copy()
    await writer.write(desired(A, C, events=2), SessionChanges())
    await writer.confirm()
    assert not writer.is_in_doubt
    store.fail_over()
    await writer.confirm()
    assert writer.is_in_doubt
    await writer.write(desired(A, C, events=2), SessionChanges())
    await check_stored(store, writer, A, C)
    await writer.confirm()
    assert not writer.is_in_doubt


async def test_confirm_detects_the_loss_of_a_new_session(store: ReplicatedStore) -> None:
    store.copy()
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    await writer.write(desired(A), SessionChanges())
    store.fail_over()
    with pytest.raises(SessionNotFound):
        await writer.confirm()
    assert writer.is_in_doubt
    await writer.write(desired(A), SessionChanges())
    await check_stored(store, writer, A)


async def test_confirm_expects_the_events_that_the_next_write_replaces(
    store: ReplicatedStore, writer: SessionWriter
) -> None:
    """The event log has gone on differently since they were written."""
    await writer.write(desired(A, B, events=2), SessionChanges())
    writer.rewrite_events_from(1)
    await writer.confirm()
    assert not writer.is_in_doubt
    await writer.write(desired(A, B, events=3), SessionChanges())
    found = await store.load(writer.lease.session)
    assert found is not None
    assert found.events.bodies == (b"0", b"1", b"2")


async def test_write_without_a_reply_is_undone_though_the_client_is_idle(
    store: ReplicatedStore, harness: EngineHarness
) -> None:
    """The client was told that nothing has changed, and another gateway must find it so."""
    template = harness.engine.text.template
    assert template is not None
    limits = Limits(sweep_interval_s=0.05)
    registry = Registry(harness.engine, template, GenerationSettings(), limits, store)
    async with registry.running():
        client = await connect_client(registry)
        client.receive()
        client.send_message("before", "u0")
        await client.socket.wait_for("conversation.item.done")
        before = await store.load(client.session_id)
        assert before is not None
        store.lose_reply_if_executed = True
        client.send_message("hello", "u1")
        refused = await client.socket.wait_for("error")
        assert refused["error"]["code"] == "store_unavailable"

        async def is_as_before() -> bool:
            found = await store.load(client.session_id)
            return found is not None and (found.entries, found.state) == (
                before.entries,
                before.state,
            )

        await poll_until(is_as_before)


async def test_epoch_lost_in_a_failover_is_not_used_again(
    store: ReplicatedStore, harness: EngineHarness
) -> None:
    """Event ids of the lost epoch are invalid in the next."""
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(harness.engine, template, GenerationSettings(), Limits(), store)
    client = await connect_client(registry)
    await client.disconnect()
    client.receive()
    store.copy()
    epochs: list[str] = []
    for _ in range(2):
        await unload(registry, client.session_id)
        store.fail_over()
        await asyncio.sleep(0.05)  # fences of one moment run ahead of the clock
        client.resume("event_elsewhere_0")
        await client.socket.wait_for("session.updated")
        resume = resume_result(client.socket)
        assert resume["resumed"] == "snapshot"
        epochs.append(resume["epoch"])
        await client.disconnect()
    await registry.aclose()
    assert len({*epochs}) == 2

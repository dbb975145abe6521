"""A store that has lost all its data: the sessions of the gateways are written again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry import recovery
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import (
    SessionLease,
    Snapshot,
    Store,
    StoreReplaced,
    StoreUnavailable,
    WriteBatch,
    open_store,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.clients import JsonEvent
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient, connect_client, resume_result
from tests.support.redis_process import RedisProcess, needs_redis, running_redis
from tests.support.waiting import wait_until

INCLUDE = {"type": "realtime", "include": ["session.continuity"]}


class LossyStore(SqliteStore):
    """A store in memory that can lose all its data, and refuse to get it back."""

    refuses = False
    written: int = 0
    """Number of sessions that were written again."""
    writing: int = 0
    """Number of sessions that are being written again now."""
    writing_max: int = 0
    shared = False

    @property
    def is_shared(self) -> bool:
        return self.shared

    async def recreate(self, *args: Any, **options: Any) -> SessionLease:
        if self.refuses:
            raise StoreUnavailable("not now")
        self.writing += 1
        self.writing_max = max(self.writing, self.writing_max)
        lease = await super().recreate(*args, **options)
        self.writing -= 1
        self.written += 1
        return lease

    async def lose_all(self) -> None:
        def delete() -> None:
            self._tables.db.execute("DELETE FROM sessions")
            self._tables.db.execute("UPDATE store SET epoch = epoch || 'x'")

        await self._run(delete)


@contextlib.asynccontextmanager
async def gateway(harness: EngineHarness, store: Store, **limits: Any) -> AsyncIterator[Registry]:
    template = harness.engine.text.template
    assert template is not None
    options = Limits(**{"sweep_interval_s": 0.05, **limits})
    registry = Registry(harness.engine, template, GenerationSettings(), options, store)
    async with registry.running():
        yield registry


@pytest.fixture
async def store() -> AsyncIterator[LossyStore]:
    store = await LossyStore.open(None)
    yield store
    await store.aclose()


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    async with running_redis(tmp_path) as process:
        yield process


async def open_client(registry: Registry, *, includes: bool = True) -> InProcessClient:
    """Connect a client to a session with the item `u1`."""
    client = await connect_client(registry)
    if includes:
        client.socket.push_event(type="session.update", session=INCLUDE)
        updated = await client.socket.wait_for("session.updated")
        assert updated["session"]["include"] == ["session.continuity"]
    client.send_message("hello", "u1")
    await client.socket.wait_for("conversation.item.done")
    client.receive()
    return client


def continuity(client: InProcessClient) -> list[str]:
    events: list[JsonEvent] = client.socket.sent
    return [event["status"] for event in events if event["type"] == "session.continuity"]


async def wait_until_recovered(*registries: Registry) -> None:
    for registry in registries:
        await wait_until(lambda each=registry: each.recovery.is_recovering)
    for registry in registries:
        await wait_until(lambda each=registry: not each.recovery.is_recovering)


async def load(store: Store, client: InProcessClient) -> Snapshot:
    found = await store.load(client.session_id)
    assert found is not None, "the session is not in the store"
    return found


async def test_connected_and_parked_sessions_are_written_again(
    harness: EngineHarness, store: LossyStore
) -> None:
    async with gateway(harness, store) as registry:
        connected, parked, silent = [
            await open_client(registry, includes=includes) for includes in (True, True, False)
        ]
        await parked.disconnect()
        before = [await load(store, each) for each in (connected, parked, silent)]
        await store.lose_all()
        await wait_until_recovered(registry)
        for client, snapshot in zip((connected, parked, silent), before, strict=True):
            found = await load(store, client)
            assert (found.entries, found.state) == (snapshot.entries, snapshot.state)
            assert found.events == snapshot.events
            assert found.metadata.is_parked is (client is parked)
            assert found.metadata.secret == snapshot.metadata.secret
        assert continuity(connected) == ["restored"]
        assert continuity(silent) == [], "it does not include the event"
        connected.send_message("and now?", "u2")
        await connected.socket.wait_for("conversation.item.done", 2)
        assert len((await load(store, connected)).entries) == len(before[0].entries) + 1
        assert continuity(connected) == ["restored"], "reported once"


async def test_session_that_changes_before_its_turn_is_reported_restored_once(
    harness: EngineHarness, store: LossyStore
) -> None:
    async with gateway(harness, store, sweep_interval_s=3600) as registry:
        client = await open_client(registry)
        await store.lose_all()
        client.send_message("still there?", "u2")
        await client.socket.wait_for("conversation.item.done", 2)
        assert continuity(client) == ["restored"]
        assert registry.recovery.is_recovering
        registry.recovery.check()
        await wait_until(lambda: not registry.recovery.is_recovering)
        assert continuity(client) == ["restored"]
        assert store.written == 1


async def test_recovery_goes_on_until_the_store_accepts_every_session(
    harness: EngineHarness, store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)
    async with gateway(harness, store) as registry:
        clients = [await open_client(registry) for _ in range(12)]
        store.refuses = True
        await store.lose_all()
        await wait_until(lambda: registry.recovery.is_recovering)
        closed = clients.pop()
        closed.socket.push_event(type="session.close")
        await closed.wait_closed()
        assert registry.recovery.is_recovering
        store.refuses = False
        await wait_until(lambda: not registry.recovery.is_recovering)
        assert store.written == len(clients)
        assert 1 <= store.writing_max <= recovery.CONCURRENT_WRITES
        for client in clients:
            await load(store, client)
        assert await store.find(closed.session_id) is None, "closed before its turn"


async def test_sessions_are_written_again_at_a_bounded_rate(
    harness: EngineHarness, store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SESSIONS_PER_S", 25)
    async with gateway(harness, store) as registry:
        for _ in range(10):
            await open_client(registry, includes=False)
        await store.lose_all()
        await wait_until(lambda: store.written > 0)
        began_s = asyncio.get_running_loop().time()
        await wait_until(lambda: not registry.recovery.is_recovering)
        assert asyncio.get_running_loop().time() - began_s > 0.2
        assert store.written == 10


async def test_stop_waits_until_the_sessions_are_written_again(
    harness: EngineHarness, store: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(harness, store, sweep_interval_s=3600) as registry:
        client = await open_client(registry)
        await store.lose_all()
        with pytest.raises(StoreReplaced):
            await store.check()
    await load(store, client)
    monkeypatch.setattr(recovery, "FINISH_S", 0.1)
    async with gateway(harness, store, sweep_interval_s=3600) as registry:
        client = await open_client(registry)
        await store.lose_all()
        store.refuses = True
        with pytest.raises(StoreReplaced):
            await store.check()
    assert await store.find(client.session_id) is None


async def test_session_of_an_embedded_store_is_unknown_at_once(
    harness: EngineHarness, store: LossyStore
) -> None:
    """Only another gateway could write it again, and a store that is not shared has none."""
    async with gateway(harness, store) as registry:
        client = await open_client(registry)
        await store.lose_all()
        assert await registry.status("sess_unknown", "") is None
        await wait_until_recovered(registry)
        await client.disconnect()


@needs_redis
@pytest.mark.redis
async def test_session_resumes_at_another_gateway_after_a_flush(
    harness: EngineHarness, redis: RedisProcess
) -> None:
    """The session is refused for now, not as unknown, until its owner has written it again."""
    stores = [await open_store(redis.url) for _ in range(2)]
    async with (
        gateway(harness, stores[0], sweep_interval_s=3600) as owner,
        gateway(harness, stores[1], sweep_interval_s=3600) as other,
    ):
        client = await open_client(owner)
        await client.disconnect()
        async with redis.client() as admin:
            await admin.flushall()
        client.registry = other
        for _ in range(2):
            client.resume()
            await client.wait_closed()
            (event,) = client.socket.sent
            assert event["error"]["code"] == "store_unavailable"
            other.recovery.check()
            await wait_until(lambda: not other.recovery.is_recovering)
        with contextlib.suppress(StoreReplaced):
            await stores[0].check()
        owner.recovery.check()
        await wait_until(lambda: not owner.recovery.is_recovering)
        client.resume()
        await client.socket.wait_for("conversation.item.done")
        assert resume_result(client.socket)["resumed"] == "snapshot", "another store epoch"
        session = other.find(client.session_id)
        assert session is not None
        assert [item.id for item in session.conversation.items()] == ["u1"]
        await client.disconnect()
    for store in stores:
        await store.aclose()


@needs_redis
@pytest.mark.redis
@pytest.mark.parametrize("is_last_first", [True, False])
async def test_copy_of_the_last_owner_stays(
    harness: EngineHarness, redis: RedisProcess, is_last_first: bool
) -> None:
    """Two gateways have the session when Redis is flushed, and both write it again."""
    stores = [await open_store(redis.url) for _ in range(2)]
    async with (
        gateway(harness, stores[0], sweep_interval_s=3600) as earlier,
        gateway(harness, stores[1], sweep_interval_s=3600) as last,
    ):
        first = await open_client(earlier)
        second = InProcessClient(last)
        second.received = list(first.received)
        second.resume()
        await second.socket.wait_for("session.updated")
        second.send_message("more", "u2")
        await second.socket.wait_for("conversation.item.done")
        async with redis.client() as admin:
            await admin.flushall()
        gateways = [(earlier, stores[0]), (last, stores[1])]
        for registry, store in reversed(gateways) if is_last_first else gateways:
            with contextlib.suppress(StoreReplaced):
                await store.check()
            registry.recovery.check()
            await wait_until(lambda each=registry: not each.recovery.is_recovering)
        if is_last_first:
            await first.wait_closed()
            assert continuity(first) == ["lost"]
            assert first.socket.closed is not None
            assert first.socket.closed[0] == CloseCode.SUPERSEDED
        assert continuity(second) == ["restored"]
        assert any(b"u2" in entry for entry in (await load(stores[0], first)).entries)
        await second.disconnect()
    for store in stores:
        await store.aclose()


async def test_batch_that_is_not_a_whole_session_is_not_recreated(store: LossyStore) -> None:
    assert not WriteBatch(entries=(b"a",)).is_whole
    assert not WriteBatch(kept_entries=1, state=b"").is_whole
    assert WriteBatch(kept_entries=0, state=b"").is_whole

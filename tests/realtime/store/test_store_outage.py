"""A Redis that stops, sleeps, dies, forgets, fills up or hands over; and one that will not do."""

import asyncio
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from continuo.realtime.store import (
    DuplicateWrite,
    Entry,
    IdempotentRequest,
    OwnershipLost,
    SessionDataLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoredEvents,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
    SweepResult,
    WriteBatch,
    WriteResult,
    keys,
    open_store,
)
from tests.support.redis_process import RedisProcess, free_port, needs_redis
from tests.support.store_records import answer, append, entry, fresh_session

pytestmark = needs_redis

SLACK_S = 1.5
"""The machine may be busy with other things."""
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path / "redis", *EVERY_SECOND)
    await process.start()
    yield process
    process.kill()


@pytest.fixture
async def store(server: RedisProcess) -> AsyncIterator[Store]:
    store = await open_store(server.url)
    yield store
    await store.aclose()


async def refused_in_time(call: Awaitable[Any]) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        await call
    assert time.monotonic() - began < 1.0 + SLACK_S
    assert caught.value.retryable


def every_call(store: Store, lease: SessionLease) -> list[Awaitable[Any]]:
    return [
        store.check(),
        store.create(fresh_session()),
        store.find(lease.session),
        store.load(lease.session),
        store.claim(lease.session, "gate-2", ttl_s=60),
        store.write(lease, WriteBatch(kept_entries=1, entries=(entry(2),))),
        store.journal(lease, "resp_1", 0, (1,)),
        store.extend_deadline(lease, 60, is_parked=True),
        store.confirm(lease),
        store.sweep(10),
        store.find_response("resp_1"),
        store.delete(lease),
        store.force_delete(lease.session),
    ]


# ---------------------------------------------------------------- away for a while


async def test_stopped_and_started_again(server: RedisProcess, store: Store) -> None:
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    epoch = store.epoch
    server.stop()
    for call in every_call(store, lease):
        await refused_in_time(call)
    await server.start()
    await append(store, lease, 1, entry(2))
    assert store.epoch == epoch
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (entry(1), entry(2))


async def test_asleep_and_awake_again(server: RedisProcess, store: Store) -> None:
    """All at once: nobody waits for another's time to be over."""
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    others = [await store.create(fresh_session()) for _ in range(2 * keys.CONNECTIONS_MAX)]
    change = WriteBatch(
        kept_entries=0, entries=(entry(7),), request=IdempotentRequest("event_1", b"c", b"r")
    )
    server.pause()
    writes = [store.write(other, change) for other in others]
    calls = [*every_call(store, lease), *writes]
    await asyncio.gather(*(refused_in_time(call) for call in calls))
    server.go_on()
    for other in others:
        again = await until_there(store, other, change)
        assert again in (WriteResult(1, 0), DuplicateWrite(b"r"))
        card = await store.find(other.session)
        assert card is not None
        assert card.entry_count == 1


async def until_there(
    store: Store, lease: SessionLease, change: WriteBatch
) -> WriteResult | DuplicateWrite:
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.write(lease, change)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def test_while_it_lets_others_wait_it_is_not_called(
    server: RedisProcess, store: Store
) -> None:
    """Who comes one after the other does not wait one after the other; it is called again when it
    answers."""
    lease = await store.create(fresh_session())
    server.pause()
    began = time.monotonic()
    await refused_in_time(store.confirm(lease))
    assert not store.is_available
    for _ in range(50):
        await refused_in_time(store.confirm(lease))
    assert time.monotonic() - began < 50 * keys.TIMEOUT_S / 4
    server.go_on()
    await until_awake(store)
    await append(store, lease, 0, entry(1))


async def until_awake(store: Store) -> None:
    began = time.monotonic()
    while not store.is_available:
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < 2.0 + SLACK_S


async def test_one_that_is_gone_is_looked_for(server: RedisProcess, store: Store) -> None:
    server.stop()
    await refused_in_time(store.check())
    assert not store.is_available
    await server.start()
    await until_awake(store)
    await store.check()


async def test_a_host_that_takes_no_connections() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            await refused_in_time(open_store(f"redis://127.0.0.1:{port}"))
            hosts = f"127.0.0.1:{port},localhost:{port}"
            await refused_in_time(open_store(f"redis+sentinel://{hosts}/talk"))


async def test_calls_given_up_do_not_answer_others(server: RedisProcess, store: Store) -> None:
    made = [fresh_session(state=str(n).encode()) for n in range(20)]
    for new in made:
        await store.create(new)
    server.pause()
    calls = [asyncio.create_task(store.load(new.id)) for new in made]
    await asyncio.sleep(0.05)
    for call in calls[::2]:
        call.cancel()
    await asyncio.sleep(0.05)
    server.go_on()
    await asyncio.gather(*calls, return_exceptions=True)
    for new in made:
        snapshot = await store.load(new.id)
        assert snapshot is not None
        assert (snapshot.metadata.id, snapshot.state) == (new.id, new.state)


# ---------------------------------------------------------------- killed


async def test_killed_in_strict_mode_loses_nothing(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis", *ALWAYS)
    await server.start()
    store = await open_store(server.url, "strict")
    leases = [await store.create(fresh_session()) for _ in range(4)]
    acknowledged = dict.fromkeys(leases, 0)

    async def write(lease: SessionLease) -> None:
        while True:
            at = acknowledged[lease]
            await append(store, lease, at, entry(at))
            acknowledged[lease] = at + 1

    writers = [asyncio.create_task(write(lease)) for lease in leases]
    async with asyncio.timeout(30):
        while min(acknowledged.values()) < 20:
            await asyncio.sleep(0.01)
    server.kill()
    for outcome in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailable)
    await server.start()
    for lease, count in acknowledged.items():
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        ids = [one.ids for one in snapshot.entries]
        assert ids[:count] == [(n,) for n in range(count)]
        assert len(ids) - count <= 1, "the one that was not acknowledged may be there"
        await append(store, lease, count, entry(count))
    await store.aclose()
    server.kill()


async def test_a_lost_last_second_is_told_to_whom_it_concerns(
    server: RedisProcess, store: Store
) -> None:
    lost, whole = [await store.create(fresh_session()) for _ in range(2)]
    await append(store, lost, 0, entry(1))
    await append(store, whole, 0, entry(1))
    late = await store.create(fresh_session())
    (log,) = server.folder.glob("appendonlydir/*.incr.aof")
    kept = log.stat().st_size
    await append(store, lost, 1, entry(2))
    taken = await store.claim(late.session, "gate-2", ttl_s=60)
    server.kill()
    with log.open("r+b") as file:  # as a crash of the machine would leave it
        file.truncate(kept)
    await server.start()
    with pytest.raises(SessionDataLost):
        await append(store, lost, 2, entry(3))
    with pytest.raises(SessionDataLost):
        await append(store, taken, 0, entry(1))
    await append(store, whole, 1, entry(2))
    # Who was there knows what is missing, and writes it again.
    await append(store, lost, 1, entry(2), entry(3))
    again = await store.claim(late.session, "gate-3", ttl_s=60)
    assert again.fence > taken.fence, "no fence is given twice, even so"
    with pytest.raises(OwnershipLost):
        await append(store, taken, 0, entry(1))


# ---------------------------------------------------------------- forgotten


async def test_flushed_under_load(server: RedisProcess, store: Store) -> None:
    leases = [await store.create(fresh_session()) for _ in range(8)]
    other = await open_store(server.url)
    epoch = store.epoch

    async def write(lease: SessionLease) -> None:
        for at in range(100_000):
            await append(store, lease, at, entry(at))

    writers = [asyncio.create_task(write(lease)) for lease in leases]
    await asyncio.sleep(0.2)
    async with server.client() as client:
        await client.flushall()
    for outcome in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(outcome, StoreReplaced)
    assert store.epoch != epoch
    with pytest.raises(StoreReplaced):
        await other.find(leases[0].session)
    assert other.epoch == store.epoch
    with pytest.raises(SessionNotFound):
        await store.claim(leases[0].session, "gate-1", ttl_s=60)
    again = await store.create(fresh_session(id=leases[0].session))
    await append(store, again, 0, entry(1))
    with pytest.raises(StoreReplaced):
        await append(store, leases[0], 1, entry(2))
    await other.aclose()


async def test_started_again_empty_is_another_store(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis")
    await server.start()
    store = await open_store(server.url)
    lease = await store.create(fresh_session())
    server.kill()
    await server.start()
    with pytest.raises(StoreReplaced):
        await store.check()
    with pytest.raises(StoreReplaced):
        await append(store, lease, 0, entry(1))
    await store.check()
    await store.aclose()
    server.kill()


async def test_a_flush_is_seen_by_looking(server: RedisProcess, store: Store) -> None:
    await store.check()
    async with server.client() as client:
        await client.flushall()
    with pytest.raises(StoreReplaced):
        await store.check()
    await store.check()


async def test_a_forgotten_response_may_be_a_lost_store(server: RedisProcess, store: Store) -> None:
    async with server.client() as client:
        await client.flushall()
    with pytest.raises(StoreReplaced):
        await store.find_response("resp_1")


# ---------------------------------------------------------------- full


async def test_full_refuses_whole_and_goes_on_when_there_is_room(
    server: RedisProcess, store: Store
) -> None:
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    async with server.client() as client:
        await client.config_set("maxmemory", "1mb")
        change = WriteBatch(
            kept_entries=1,
            entries=(Entry(b"x"),),
            started_responses=(answer(),),
            epoch=3,
            events=StoredEvents(0, (b"e",)),
            request=IdempotentRequest("event_1", b"c"),
        )
        await refused_in_time(store.write(lease, change))
        await refused_in_time(store.create(fresh_session()))
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        assert (snapshot.entries, snapshot.running_responses) == ((entry(1),), ())
        assert (snapshot.metadata.epoch, snapshot.events) == (0, StoredEvents())
        await client.config_set("maxmemory", "0")
    assert await store.write(lease, change) == WriteResult(2, 1)


# ---------------------------------------------------------------- will not do


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru"])
async def test_a_redis_that_may_drop_sessions_is_refused(tmp_path: Path, policy: str) -> None:
    server = RedisProcess(tmp_path / "redis", "--maxmemory-policy", policy)
    await server.start()
    with pytest.raises(StoreUnusable, match=policy):
        await open_store(server.url)
    server.kill()


@pytest.mark.parametrize(
    "options", [(), EVERY_SECOND, ("--appendonly", "no", "--appendfsync", "always")]
)
async def test_strict_needs_every_write_on_disk(tmp_path: Path, options: tuple[str, ...]) -> None:
    server = RedisProcess(tmp_path / "redis", *options)
    await server.start()
    with pytest.raises(StoreUnusable, match="appendfsync always"):
        await open_store(server.url, "strict")
    await (await open_store(server.url)).aclose()
    server.kill()


async def test_the_rules_are_looked_at_again_after_an_outage(
    server: RedisProcess, store: Store
) -> None:
    lease = await store.create(fresh_session())
    server.pause()
    await refused_in_time(store.check())
    server.go_on()
    await until_awake(store)
    async with server.client() as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match="allkeys-lru"):
            await append(store, lease, 0, entry(1))
        await client.config_set("maxmemory-policy", "noeviction")
    await append(store, lease, 0, entry(1))


async def test_a_password_is_needed_and_taken(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis", "--maxclients", "50")
    await server.start()
    async with server.client() as client:
        await client.config_set("requirepass", "p:w/d")
    with pytest.raises(StoreUnusable):
        await open_store(server.url)
    url = f"redis://:p%3Aw%2Fd@127.0.0.1:{server.port}/0"
    store = await open_store(url)
    await store.check()
    await store.aclose()
    server.kill()


# ---------------------------------------------------------------- many gateways


async def test_of_many_gateways_with_one_request_one_is_written(server: RedisProcess) -> None:
    """A client sends again what was not acknowledged, to whichever gateway is there."""
    stores = [await open_store(server.url) for _ in range(4)]
    for round in range(20):
        new = fresh_session()
        lease = await stores[0].create(new)
        change = WriteBatch(
            kept_entries=0,
            entries=(entry(round),),
            request=IdempotentRequest("event_1", b"c", b"r"),
        )

        async def claim_and_write(
            n: int, session: str = new.id, change: WriteBatch = change
        ) -> object:
            mine = await stores[n].claim(session, f"gate-{n}", ttl_s=60)
            return await stores[n].write(mine, change)

        first = stores[0].write(lease, change)
        rest = [claim_and_write(n) for n in range(4)]
        results = await asyncio.gather(first, *rest, return_exceptions=True)
        assert all(isinstance(one, WriteResult | DuplicateWrite | OwnershipLost) for one in results)
        assert sum(isinstance(one, WriteResult) for one in results) == 1
        snapshot = await stores[1].load(new.id)
        assert snapshot is not None
        assert snapshot.entries == (entry(round),)
    for store in stores:
        await store.aclose()


async def test_of_many_sweepers_one_removes_a_session(server: RedisProcess) -> None:
    stores = [await open_store(server.url) for _ in range(3)]
    made = [(await stores[0].create(fresh_session(ttl_s=0))).session for _ in range(60)]
    swept = await asyncio.gather(*(store.sweep(1000) for store in stores))
    names = [name for one in swept for name in one.expired]
    assert sorted(names) == sorted(made)
    async with server.client() as client:
        assert await client.keys("*") == [keys.EPOCH_KEY.encode()], "nothing is left behind"
    for store in stores:
        await store.aclose()


async def test_an_index_that_is_too_early_is_put_right(server: RedisProcess, store: Store) -> None:
    made = [(await store.create(fresh_session(ttl_s=60))).session for _ in range(3)]
    over = (await store.create(fresh_session(ttl_s=0))).session
    async with server.client() as client:
        scores = [await client.zscore(keys.DEADLINES_KEY, name) for name in made]
        await client.zadd(keys.DEADLINES_KEY, dict.fromkeys(made, 0))
        assert await store.sweep(10) == SweepResult(4, [over])
        assert [await client.zscore(keys.DEADLINES_KEY, name) for name in made] == scores
    assert await store.sweep(10) == SweepResult(0, [])


async def test_all_of_a_session_lies_in_one_slot(
    server: RedisProcess, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of an ended one only that it was ended is left, for its time."""
    monkeypatch.setattr(keys, "TOMBSTONE_S", 1.0)
    new = fresh_session()
    lease = await store.create(new)
    change = WriteBatch(
        kept_entries=0,
        entries=(entry(1),),
        started_responses=(answer(),),
        request=IdempotentRequest("event_1", b"c"),
        events=StoredEvents(0, (b"e",)),
    )
    await store.write(lease, change)
    await store.journal(lease, "resp_1", 0, (1, 2))
    async with server.client() as client:
        alone = {keys.EPOCH_KEY.encode(), keys.DEADLINES_KEY.encode()}
        names = [name.encode() for name in keys.session_keys(new.id)]
        assert set(await client.keys("*")) - alone == set(names)
        assert len({key_slot(name) for name in names}) == 1
        for name in names:
            assert await client.ttl(name) == -1
    await store.delete(lease)
    async with server.client() as client:
        assert set(await client.keys("*")) - alone == {names[0]}
        async with asyncio.timeout(30):
            while set(await client.keys("*")) != {keys.EPOCH_KEY.encode()}:
                await asyncio.sleep(0.05)
                assert (await store.sweep(10)).expired == []


# ---------------------------------------------------------------- over TLS, through sentinels


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_over_tls(tmp_path: Path) -> None:
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"),
        *("subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    cert, port = tmp_path / "cert.pem", free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-auth-clients", "no")
    keyed = ("--tls-key-file", str(tmp_path / "key.pem"), "--tls-ca-cert-file", str(cert))
    server = RedisProcess(tmp_path / "redis", *tls, *keyed)
    await server.start()
    store = await open_store(f"rediss://localhost:{port}/0?ssl_ca_certs={cert}")
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    await store.aclose()
    with pytest.raises(StoreUnavailable):  # nobody vouches for its certificate
        await open_store(f"rediss://localhost:{port}/0")
    server.kill()


async def test_through_a_fail_over(tmp_path: Path) -> None:
    first = RedisProcess(tmp_path / "first")
    await first.start()
    second = RedisProcess(tmp_path / "second", "--replicaof", "127.0.0.1", str(first.port))
    await second.start()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor talk 127.0.0.1 {first.port} 1\n"
        "sentinel down-after-milliseconds talk 300\n"
        "sentinel failover-timeout talk 2000\n"
    )
    watch = RedisProcess(tmp_path / "watch", "--sentinel", config=config)
    await watch.start()
    async with asyncio.timeout(60), watch.client() as client:
        while not await client.execute_command("SENTINEL", "REPLICAS", "talk"):
            await asyncio.sleep(0.1)
    store = await open_store(f"redis+sentinel://127.0.0.1:{watch.port}/talk/0")
    lease = await store.create(fresh_session())
    await append(store, lease, 0, entry(1))
    async with first.client() as client:
        assert await client.execute_command("WAIT", 1, 20_000) == 1
    # The replica hears no more, and is not let in again: what is acknowledged now will be lost.
    async with second.client() as client:
        await client.execute_command("CONFIG", "SET", "masterauth", "nobody")
        await client.execute_command("CLIENT", "KILL", "TYPE", "master")
    await append(store, lease, 1, entry(2))
    first.kill()
    outcome: object = None
    async with asyncio.timeout(60):
        while outcome is None:
            try:
                outcome = await append(store, lease, 2, entry(3))
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            except SessionDataLost as error:
                outcome = error
    assert isinstance(outcome, SessionDataLost)
    await append(store, lease, 1, entry(2), entry(3))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (entry(1), entry(2), entry(3))
    await store.aclose()
    for process in (watch, second):
        process.kill()

"""A Redis that is stopped, paused, killed, flushed, full, failed over, or configured unsafely."""

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
    IdempotentRequest,
    LeaseLost,
    SessionDataLost,
    SessionLease,
    SessionNotFound,
    Store,
    StoredEvents,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
    SweepResult,
    WriteBatch,
    WriteResult,
    keys,
    open_store,
)
from tests.faults.proxy import Proxy
from tests.support.ports import free_port, wait_until_open
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.store_records import append_entries, make_entry, new_session, response_checkpoint
from tests.support.waiting import wait_until

pytestmark = [needs_redis, pytest.mark.redis]

STORE_KEYS = {keys.EPOCH_KEY.encode(), keys.LAYOUT_KEY.encode()}
"""Keys that a Redis without sessions has."""
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(tmp_path / "redis", *EVERY_SECOND)
    await process.start()
    yield process
    process.kill()


@pytest.fixture
async def store(redis: RedisProcess) -> AsyncIterator[Store]:
    store = await open_store(redis.url)
    yield store
    await store.aclose()


async def check_refused(call: Awaitable[Any]) -> str:
    """Wait until the call is refused, and return the cause."""
    with pytest.raises(StoreUnavailable) as caught:
        await call
    assert caught.value.retryable
    return str(caught.value)


async def refusal_time_s(call: Awaitable[Any]) -> float:
    """Wait until the call is refused, and return when that was, by the monotonic clock."""
    await check_refused(call)
    return time.monotonic()


def every_call(store: Store, lease: SessionLease) -> list[Awaitable[Any]]:
    return [
        store.check(),
        store.create(new_session()),
        store.find(lease.session),
        store.load(lease.session),
        store.claim(lease.session, "gate-2", ttl_s=60),
        store.write(lease, WriteBatch(kept_entries=1, entries=(make_entry(2),))),
        store.journal(lease, "resp_1", 0, (1,)),
        store.extend_deadline(lease, 60, is_parked=True),
        store.confirm(lease),
        store.sweep(10),
        store.find_response("resp_1"),
        store.has_response("resp_1"),
        store.delete(lease),
        store.force_delete(lease.session),
    ]


# ---------------------------------------------------------------- stopped and paused


async def test_data_and_epoch_survive_a_restart_of_redis(redis: RedisProcess, store: Store) -> None:
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    epoch = store.epoch
    redis.stop()
    for call in every_call(store, lease):
        await check_refused(call)
    await redis.start()
    await append_entries(store, lease, 1, make_entry(2))
    assert store.epoch == epoch
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1), make_entry(2))


async def test_calls_to_a_paused_redis_fail_together(redis: RedisProcess, store: Store) -> None:
    """Concurrent calls time out together, not one after another: those that wait for a connection
    do not begin a timeout of their own when they get it."""
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    others = [await store.create(new_session()) for _ in range(2 * keys.CONNECTIONS_MAX)]
    change = WriteBatch(
        kept_entries=0, entries=(make_entry(7),), request=IdempotentRequest("event_1", b"c", b"r")
    )
    redis.pause()
    writes = [store.write(other, change) for other in others]
    calls = [*every_call(store, lease), *writes]
    refused_s = await asyncio.gather(*(refusal_time_s(call) for call in calls))
    redis.resume()
    assert max(refused_s) - min(refused_s) < keys.TIMEOUT_S
    for other in others:
        result = await write_when_available(store, other, change)
        assert result in (WriteResult(1, 0), DuplicateWrite(b"r"))
        metadata = await store.find(other.session)
        assert metadata is not None
        assert metadata.entry_count == 1


async def write_when_available(
    store: Store, lease: SessionLease, change: WriteBatch
) -> WriteResult | DuplicateWrite:
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.write(lease, change)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def test_calls_to_a_paused_redis_fail_fast_until_it_replies_again(
    redis: RedisProcess, store: Store
) -> None:
    """Consecutive calls do not each wait for the timeout; they succeed once Redis replies again."""
    lease = await store.create(new_session())
    redis.pause()
    await check_refused(store.confirm(lease))
    assert not store.is_available
    for _ in range(50):
        call = asyncio.ensure_future(store.confirm(lease))
        await asyncio.sleep(0)
        assert call.done(), "it waits for Redis"
        await check_refused(call)
    redis.resume()
    await wait_until_available(store)
    await append_entries(store, lease, 0, make_entry(1))


async def wait_until_available(store: Store) -> None:
    while not store.is_available:
        await asyncio.sleep(0.01)


async def test_stopped_redis_is_probed_until_it_is_started(
    redis: RedisProcess, store: Store
) -> None:
    redis.stop()
    await check_refused(store.check())
    assert not store.is_available
    await redis.start()
    await wait_until_available(store)
    await store.check()


async def test_host_that_accepts_no_connection_is_refused() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            await check_refused(open_store(f"redis://127.0.0.1:{port}"))
            hosts = f"127.0.0.1:{port},localhost:{port}"
            await check_refused(open_store(f"redis+sentinel://{hosts}/talk"))


async def test_call_that_is_cut_and_cannot_reconnect_is_refused(redis: RedisProcess) -> None:
    async with Proxy(redis.port).running() as proxy:
        store = await open_store(f"redis://127.0.0.1:{proxy.port}/0")
        proxy.refuses_connections = True
        proxy.disconnect_after("down", 1, fin=True)
        await check_refused(store.check())
        proxy.refuses_connections = False
        await wait_until_available(store)
        await store.check()
        await store.aclose()


async def test_cancelled_calls_do_not_mix_up_replies(redis: RedisProcess, store: Store) -> None:
    sessions = [new_session(state=str(n).encode()) for n in range(20)]
    for new in sessions:
        await store.create(new)
    redis.pause()
    calls = [asyncio.create_task(store.load(new.id)) for new in sessions]
    await asyncio.sleep(0.05)
    for call in calls[::2]:
        call.cancel()
    await asyncio.sleep(0.05)
    redis.resume()
    await asyncio.gather(*calls, return_exceptions=True)
    for new in sessions:
        snapshot = await store.load(new.id)
        assert snapshot is not None
        assert (snapshot.metadata.id, snapshot.state) == (new.id, new.state)


# ---------------------------------------------------------------- killed


async def test_strict_durability_loses_no_acknowledged_write_in_a_kill(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path / "redis", *ALWAYS)
    await redis.start()
    store = await open_store(redis.url, "strict")
    leases = [await store.create(new_session()) for _ in range(4)]
    acknowledged = dict.fromkeys(leases, 0)

    async def write(lease: SessionLease) -> None:
        while True:
            at = acknowledged[lease]
            await append_entries(store, lease, at, make_entry(at))
            acknowledged[lease] = at + 1

    writers = [asyncio.create_task(write(lease)) for lease in leases]
    await wait_until(lambda: min(acknowledged.values()) >= 20, 30)
    redis.kill()
    for outcome in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailable)
    await redis.start()
    for lease, count in acknowledged.items():
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        entries = [*snapshot.entries]
        assert entries[:count] == [make_entry(n) for n in range(count)]
        assert len(entries) - count <= 1, "the unacknowledged write may be stored"
        await append_entries(store, lease, count, make_entry(count))
    await store.aclose()
    redis.kill()


async def test_truncated_append_only_file_is_data_loss_for_affected_leases(
    redis: RedisProcess, store: Store
) -> None:
    lossy, intact = [await store.create(new_session()) for _ in range(2)]
    await append_entries(store, lossy, 0, make_entry(1))
    await append_entries(store, intact, 0, make_entry(1))
    late = await store.create(new_session())
    (log,) = redis.folder.glob("appendonlydir/*.incr.aof")
    synced_bytes = log.stat().st_size
    await append_entries(store, lossy, 1, make_entry(2))
    lost_claim = await store.claim(late.session, "gate-2", ttl_s=60)
    redis.kill()
    with log.open("r+b") as file:  # as after a crash of the machine
        file.truncate(synced_bytes)
    await redis.start()
    with pytest.raises(SessionDataLost):
        await append_entries(store, lossy, 2, make_entry(3))
    with pytest.raises(SessionDataLost):
        await append_entries(store, lost_claim, 0, make_entry(1))
    await append_entries(store, intact, 1, make_entry(2))
    # The owner knows what is missing, and writes it again.
    await append_entries(store, lossy, 1, make_entry(2), make_entry(3))
    next_claim = await store.claim(late.session, "gate-3", ttl_s=60)
    assert next_claim.fence > lost_claim.fence, "a lost fence is not issued again"
    with pytest.raises(LeaseLost):
        await append_entries(store, lost_claim, 0, make_entry(1))


# ---------------------------------------------------------------- flushed


async def test_flush_under_load_is_detected_by_every_writer(
    redis: RedisProcess, store: Store
) -> None:
    leases = [await store.create(new_session()) for _ in range(8)]
    other = await open_store(redis.url)
    epoch = store.epoch

    async def write(lease: SessionLease) -> None:
        for at in range(100_000):
            await append_entries(store, lease, at, make_entry(at))

    writers = [asyncio.create_task(write(lease)) for lease in leases]
    await asyncio.sleep(0.2)
    async with redis.client() as client:
        await client.flushall()
    for outcome in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(outcome, StoreReplaced)
    assert store.epoch != epoch
    with pytest.raises(StoreReplaced):
        await other.find(leases[0].session)
    assert other.epoch == store.epoch
    with pytest.raises(SessionNotFound):
        await store.claim(leases[0].session, "gate-1", ttl_s=60)
    recreated = await store.create(new_session(id=leases[0].session))
    await append_entries(store, recreated, 0, make_entry(1))
    with pytest.raises(StoreReplaced):
        await append_entries(store, leases[0], 1, make_entry(2))
    await other.aclose()


async def test_redis_restarted_without_data_is_another_store(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path / "redis")
    await redis.start()
    store = await open_store(redis.url)
    lease = await store.create(new_session())
    redis.kill()
    await redis.start()
    with pytest.raises(StoreReplaced):
        await store.check()
    with pytest.raises(StoreReplaced):
        await append_entries(store, lease, 0, make_entry(1))
    await store.check()
    await store.aclose()
    redis.kill()


async def test_check_detects_a_flush(redis: RedisProcess, store: Store) -> None:
    await store.check()
    async with redis.client() as client:
        await client.flushall()
    with pytest.raises(StoreReplaced):
        await store.check()
    await store.check()


async def test_lookup_of_a_response_detects_a_flush(redis: RedisProcess, store: Store) -> None:
    for lookup in (store.find_response, store.has_response):
        async with redis.client() as client:
            await client.flushall()
        with pytest.raises(StoreReplaced):
            await lookup("resp_1")


# ---------------------------------------------------------------- full


async def test_full_redis_refuses_whole_writes_until_memory_is_free(
    redis: RedisProcess, store: Store
) -> None:
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    async with redis.client() as client:
        await client.config_set("maxmemory", "1mb")
        change = WriteBatch(
            kept_entries=1,
            entries=(b"x",),
            started_responses=(response_checkpoint(),),
            epoch=3,
            events=StoredEvents(0, (b"e",)),
            request=IdempotentRequest("event_1", b"c"),
        )
        await check_refused(store.write(lease, change))
        await check_refused(store.create(new_session()))
        snapshot = await store.load(lease.session)
        assert snapshot is not None
        assert (snapshot.entries, snapshot.running_responses) == ((make_entry(1),), ())
        assert (snapshot.metadata.epoch, snapshot.events) == (0, StoredEvents())
        await client.config_set("maxmemory", "0")
    assert await store.write(lease, change) == WriteResult(2, 1)


# ---------------------------------------------------------------- unsafe configurations


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru"])
async def test_redis_with_an_eviction_policy_is_refused(tmp_path: Path, policy: str) -> None:
    redis = RedisProcess(tmp_path / "redis", "--maxmemory-policy", policy)
    await redis.start()
    with pytest.raises(StoreUnusable, match=policy):
        await open_store(redis.url)
    redis.kill()


@pytest.mark.parametrize(
    "options", [(), EVERY_SECOND, ("--appendonly", "no", "--appendfsync", "always")]
)
async def test_strict_durability_needs_appendfsync_always(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    redis = RedisProcess(tmp_path / "redis", *options)
    await redis.start()
    with pytest.raises(StoreUnusable, match="appendfsync always"):
        await open_store(redis.url, "strict")
    await (await open_store(redis.url)).aclose()
    redis.kill()


async def test_redis_configuration_is_checked_again_after_an_outage(
    redis: RedisProcess, store: Store
) -> None:
    lease = await store.create(new_session())
    redis.pause()
    await check_refused(store.check())
    redis.resume()
    await wait_until_available(store)
    async with redis.client() as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match="allkeys-lru"):
            await append_entries(store, lease, 0, make_entry(1))
        await client.config_set("maxmemory-policy", "noeviction")
    await append_entries(store, lease, 0, make_entry(1))


async def test_password_in_the_url_is_required_and_percent_decoded(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path / "redis", "--maxclients", "50")
    await redis.start()
    async with redis.client() as client:
        await client.config_set("requirepass", "p:w/d")
    with pytest.raises(StoreUnusable):
        await open_store(redis.url)
    url = f"redis://:p%3Aw%2Fd@127.0.0.1:{redis.port}/0"
    store = await open_store(url)
    await store.check()
    await store.aclose()
    redis.kill()


# ---------------------------------------------------------------- many gateways


async def test_one_request_to_many_gateways_is_written_once(redis: RedisProcess) -> None:
    """A client retries an unacknowledged request on several gateways."""
    stores = [await open_store(redis.url) for _ in range(4)]
    for round in range(20):
        new = new_session()
        lease = await stores[0].create(new)
        change = WriteBatch(
            kept_entries=0,
            entries=(make_entry(round),),
            request=IdempotentRequest("event_1", b"c", b"r"),
        )

        async def claim_and_write(
            n: int, session: str = new.id, change: WriteBatch = change
        ) -> object:
            lease = await stores[n].claim(session, f"gate-{n}", ttl_s=60)
            return await stores[n].write(lease, change)

        first = stores[0].write(lease, change)
        rest = [claim_and_write(n) for n in range(4)]
        results = await asyncio.gather(first, *rest, return_exceptions=True)
        expected = WriteResult | DuplicateWrite | LeaseLost
        assert all(isinstance(result, expected) for result in results)
        assert sum(isinstance(result, WriteResult) for result in results) == 1
        snapshot = await stores[1].load(new.id)
        assert snapshot is not None
        assert snapshot.entries == (make_entry(round),)
    for store in stores:
        await store.aclose()


async def test_concurrent_sweeps_remove_each_session_once(redis: RedisProcess) -> None:
    stores = [await open_store(redis.url) for _ in range(3)]
    expired = [(await stores[0].create(new_session(ttl_s=0))).session for _ in range(60)]
    swept = await asyncio.gather(*(store.sweep(1000) for store in stores))
    names = [name for sweep in swept for name in sweep.expired]
    assert sorted(names) == sorted(expired)
    async with redis.client() as client:
        assert set(await client.keys("*")) == STORE_KEYS, "nothing of a session is left"
    for store in stores:
        await store.aclose()


async def test_sweep_corrects_deadlines_that_are_too_early(
    redis: RedisProcess, store: Store
) -> None:
    live = [(await store.create(new_session(ttl_s=60))).session for _ in range(3)]
    expired = (await store.create(new_session(ttl_s=0))).session
    async with redis.client() as client:
        scores = [await client.zscore(keys.DEADLINES_KEY, name) for name in live]
        await client.zadd(keys.DEADLINES_KEY, dict.fromkeys(live, 0))
        assert await store.sweep(10) == SweepResult(4, [expired])
        assert [await client.zscore(keys.DEADLINES_KEY, name) for name in live] == scores
    assert await store.sweep(10) == SweepResult(0, [])


async def test_keys_of_a_session_share_a_slot_and_leave_a_tombstone(
    redis: RedisProcess, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted session leaves only its tombstone, which expires."""
    monkeypatch.setattr(keys, "TOMBSTONE_S", 1.0)
    new = new_session()
    lease = await store.create(new)
    change = WriteBatch(
        kept_entries=0,
        entries=(make_entry(1),),
        started_responses=(response_checkpoint(),),
        request=IdempotentRequest("event_1", b"c"),
        events=StoredEvents(0, (b"e",)),
    )
    await store.write(lease, change)
    await store.journal(lease, "resp_1", 0, (1, 2))
    async with redis.client() as client:
        shared = STORE_KEYS | {keys.DEADLINES_KEY.encode()}
        names = [name.encode() for name in keys.session_keys(new.id)]
        index = keys.tenant_keys(new.tenant).sessions.encode()
        assert set(await client.keys("*")) - shared == {*names, index}
        assert len({key_slot(name) for name in names}) == 1
        until_ms = await client.zscore(keys.DEADLINES_KEY, new.id)
        for name in names:  # a net, in case no gateway is left to remove the session
            assert await client.pexpiretime(name.decode()) == int(until_ms or 0) + 3600_000
    await store.delete(lease)
    async with redis.client() as client:
        assert set(await client.keys("*")) - shared == {names[0]}
        async with asyncio.timeout(30):
            while set(await client.keys("*")) != STORE_KEYS:
                await asyncio.sleep(0.05)
                assert (await store.sweep(10)).expired == []


# ---------------------------------------------------------------- over TLS, through sentinels


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_redis_over_tls_needs_a_trusted_certificate(tmp_path: Path) -> None:
    openssl = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"),
        *("subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await openssl.wait() == 0
    cert, port = tmp_path / "cert.pem", free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-auth-clients", "no")
    key = ("--tls-key-file", str(tmp_path / "key.pem"), "--tls-ca-cert-file", str(cert))
    redis = RedisProcess(tmp_path / "redis", *tls, *key)
    await redis.start()
    store = await open_store(f"rediss://localhost:{port}/0?ssl_ca_certs={cert}")
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    await store.aclose()
    with pytest.raises(StoreUnavailable):  # the certificate is not trusted
        await open_store(f"rediss://localhost:{port}/0")
    redis.kill()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ("requirepass secret", StoreUnusable, "a sentinel requires a password, which is not"),
        ("user default on nopass ~* +ping", StoreUnusable, "Redis refuses access: "),
        ("", StoreUnavailable, "no sentinel names a primary of 'talk'$"),
    ],
    ids=["password", "permissions", "service"],
)
async def test_sentinel_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, settings: str, error: type[StoreError], message: str
) -> None:
    config = tmp_path / "sentinel.conf"
    config.write_text(f"{settings}\nsentinel monitor other 127.0.0.1 {free_port()} 1\n")
    sentinel = RedisProcess(tmp_path / "watch", "--sentinel", config=config)
    sentinel.spawn()
    await wait_until_open(sentinel.port)
    with pytest.raises(error, match=message):
        await open_store(f"redis+sentinel://127.0.0.1:{sentinel.port}/talk")
    sentinel.kill()


async def test_sentinel_failover_that_lost_a_write_is_data_loss(tmp_path: Path) -> None:
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
    sentinel = RedisProcess(tmp_path / "watch", "--sentinel", config=config)
    await sentinel.start()
    async with asyncio.timeout(60), sentinel.client() as client:
        while not await client.execute_command("SENTINEL", "REPLICAS", "talk"):
            await asyncio.sleep(0.1)
    store = await open_store(f"redis+sentinel://127.0.0.1:{sentinel.port}/talk/0")
    lease = await store.create(new_session())
    await append_entries(store, lease, 0, make_entry(1))
    async with first.client() as client:
        assert await client.execute_command("WAIT", 1, 20_000) == 1
    # The replica is cut off and cannot reconnect: writes acknowledged from now on will be lost.
    async with second.client() as client:
        await client.execute_command("CONFIG", "SET", "masterauth", "nobody")
        await client.execute_command("CLIENT", "KILL", "TYPE", "master")
    await append_entries(store, lease, 1, make_entry(2))
    first.kill()
    outcome: object = None
    async with asyncio.timeout(60):
        while outcome is None:
            try:
                outcome = await append_entries(store, lease, 2, make_entry(3))
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            except SessionDataLost as error:
                outcome = error
    assert isinstance(outcome, SessionDataLost)
    await append_entries(store, lease, 1, make_entry(2), make_entry(3))
    snapshot = await store.load(lease.session)
    assert snapshot is not None
    assert snapshot.entries == (make_entry(1), make_entry(2), make_entry(3))
    await store.aclose()
    for process in (sentinel, second):
        process.kill()

"""F7 and F54: Sentinel promotes a replica, which may lack the last writes, while the primary is cut
off; then the old primary returns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

from redis.exceptions import RedisError

from continuo.realtime.store import Snapshot, Store, StoreError
from tests.faults.cluster import continue_and_close
from tests.faults.deployment import Deployment, open_when_available, running_deployment
from tests.faults.row import FaultRow
from tests.faults.stores import TIMEOUT_FACTOR, check_items_after_loss, open_conversation
from tests.support.redis_process import REDIS_SERVER, RedisProcess
from tests.support.waiting import poll_until, wait_until

SERVICE = "talk"
FAILOVER_TIMEOUT_MS = 1000
"""Sentinel begins no second failover within twice this time."""
TIMEOUT_S = 60.0
IDLE_CONVERSATIONS = 8
RECOVERED_S_MAX = 2.0
"""Time after which a promoted replica has what it lacked: a sweep, and its checks and writes."""


class SentinelStore:
    """A primary and a replica, watched by a sentinel; they change roles with each failover."""

    def __init__(self, folder: Path) -> None:
        self.primary = RedisProcess(folder / "first")
        self.replica = RedisProcess(
            folder / "second", "--replicaof", "127.0.0.1", str(self.primary.port)
        )
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 300\n"
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}\n"
        )
        self._sentinel = RedisProcess(folder / "watch", "--sentinel", config=config)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._sentinel.port}/{SERVICE}/0"

    async def start(self) -> None:
        for process in (self.primary, self.replica, self._sentinel):
            await process.start()
        await self.wait_until_replicated()

    async def wait_until_replicated(self) -> None:
        """Wait until the replica has all writes, and the sentinel would promote it."""
        async with self.primary.client() as primary, self._sentinel.client() as sentinel:
            writer, watcher = cast("Any", primary), cast("Any", sentinel)

            async def has_all_writes() -> bool:
                return await writer.execute_command("WAIT", 1, 500) >= 1

            async def is_promotable() -> bool:
                found = await watcher.execute_command("SENTINEL", "REPLICAS", SERVICE)
                return self._is_promotable(found)

            await poll_until(has_all_writes, TIMEOUT_S)
            await poll_until(is_promotable, TIMEOUT_S)

    def _is_promotable(self, replicas: list[dict[bytes, bytes]]) -> bool:
        port = b"%d" % self.replica.port
        return any((each[b"port"], each[b"flags"]) == (port, b"slave") for each in replicas)

    async def cut_replication(self) -> None:
        """Stop the replication: writes confirmed from now on are lost at the failover."""
        async with self.replica.client() as client:
            await client.execute_command("CONFIG", "SET", "masterauth", "nobody")
            await client.execute_command("CLIENT", "KILL", "TYPE", "master")

    async def wait_until_promoted(self) -> None:
        """Wait until the replica is the primary, and exchange the roles."""
        await poll_until(self._is_replica_promoted, TIMEOUT_S)
        self.primary, self.replica = self.replica, self.primary

    async def _is_replica_promoted(self) -> bool:
        try:
            async with self.replica.client() as replica:
                client: Any = replica
                role, *_ = await client.execute_command("ROLE")
                if role == b"master":
                    await client.execute_command("CONFIG", "SET", "masterauth", "")
                    return True
        except RedisError:
            pass  # a sentinel closes the connections to what it promotes
        return False

    def stop(self) -> None:
        for process in (self._sentinel, self.replica, self.primary):
            process.kill()


async def fail_over(environment: tuple[Deployment, SentinelStore], rng: Random) -> None:
    """Stop the primary, with or without writes that the replica lacks; it returns before or after
    the clients have gone on with the new one."""
    deployment, store = environment
    conversations = [await open_conversation(deployment, n % 2) for n in range(3)]
    await store.wait_until_replicated()
    if rng.random() < 0.7:
        await store.cut_replication()
    texts_by_item: list[dict[str, str]] = []
    for client, _ in conversations:
        lines = [f"line {n}" for n in range(rng.randrange(1, 6))]
        texts = {client.item_ids[0]: "hello"} | {
            await client.add_message(line): line for line in lines
        }
        texts_by_item.append(texts)
    old = store.primary
    old.pause()
    returning = asyncio.create_task(_return_later(old, rng.uniform(0.5, 6)))
    # Its first attempt is sent to the old primary, which executes it when it returns: a late write.
    adding = asyncio.create_task(conversations[0][0].add_message("late"))
    await store.wait_until_promoted()
    texts_by_item[0][await adding] = "late"

    async def wait_until_demoted() -> None:
        await returning
        await store.wait_until_replicated()

    await check_items_after_loss(
        deployment, conversations, texts_by_item, rng, wait_until_back=wait_until_demoted
    )
    await returning
    await wait_until(lambda: all(len(each.registry) == 0 for each in deployment.gateways), 30)
    await store.wait_until_replicated()
    await asyncio.sleep(2 * FAILOVER_TIMEOUT_MS / 1000)


async def fail_over_while_idle(environment: tuple[Deployment, SentinelStore], rng: Random) -> None:
    """Promote a replica that lacks the last writes of conversations whose clients do nothing from
    then on, not even stay connected: another gateway finds every item soon after."""
    deployment, store = environment
    conversations = [
        await open_conversation(deployment, n % 2) for n in range(IDLE_CONVERSATIONS - 1)
    ]
    await store.wait_until_replicated()
    await store.cut_replication()
    conversations.append(await open_conversation(deployment, rng.randrange(2)))
    for client, expected in conversations:
        for n in range(rng.randrange(1, 4)):
            await client.add_message(f"line {n}")
            expected.add_user_message(f"line {n}")
    for client, _ in rng.sample(conversations, IDLE_CONVERSATIONS // 2):
        await client.disconnect()
    reader = await open_when_available(store.url, "normal")
    try:
        ids = [client.session_id for client, _ in conversations]
        before = [await reader.load(id) for id in ids]
        assert None not in before
        old = store.primary
        old.pause()
        await store.wait_until_promoted()
        returning = asyncio.create_task(_return_later(old, rng.uniform(0.0, 2.0)))

        async def is_as_before() -> bool:
            now = [await _load_patiently(reader, id) for id in ids]
            return all(map(has_same_log, now, before))

        await poll_until(is_as_before, RECOVERED_S_MAX * TIMEOUT_FACTOR)
    finally:
        await reader.aclose()
    for client, expected in conversations:
        items = list(client.item_ids)
        client.urls = client.urls[1:]
        await client.reconnect()
        assert client.item_ids == items, "an item is lost"
        await continue_and_close(client, expected)
    await returning
    await wait_until(lambda: all(len(each.registry) == 0 for each in deployment.gateways), 30)
    await store.wait_until_replicated()
    await asyncio.sleep(2 * FAILOVER_TIMEOUT_MS / 1000)


def has_same_log(one: Snapshot | None, other: Snapshot | None) -> bool:
    return one is not None and other is not None and one.entries == other.entries


async def _load_patiently(reader: Store, session_id: str) -> Snapshot | None:
    """Load a session. Returns None also while the store is unavailable."""
    try:
        return await reader.load(session_id)
    except StoreError:
        return None


async def _return_later(process: RedisProcess, after_s: float) -> None:
    await asyncio.sleep(after_s)
    process.resume()


@asynccontextmanager
async def deployment_with_sentinel(
    folder: Path,
) -> AsyncIterator[tuple[Deployment, SentinelStore]]:
    store = SentinelStore(folder)
    try:
        await store.start()
        async with running_deployment(folder, store_url=store.url) as deployment:
            yield deployment, store
    finally:
        store.stop()


ROWS = (
    FaultRow(
        id="F7",
        fault="Sentinel promotes a replica, which has or lacks the last writes, while the primary "
        "is stopped; the old primary returns before or after that",
        expectation="late writes of the old primary have no effect; what is lost is written again "
        "by the gateway, or a snapshot has what is left, without a gap",
        environment=deployment_with_sentinel,
        trial=fail_over,
        full_trials=30,
        quick_trials=1,
        missing_requirement=lambda: None if REDIS_SERVER else "redis-server",
    ),
    FaultRow(
        id="F54",
        fault="Sentinel promotes a replica without the last writes of eight conversations, of "
        "which four are parked and one is new; the old primary returns within 2 s; no client sends "
        "anything",
        expectation="within 2 s the replica has every item again; all clients resume at the other "
        "gateway with all items, and their next response is the expected one",
        environment=deployment_with_sentinel,
        trial=fail_over_while_idle,
        full_trials=40,
        quick_trials=1,
        missing_requirement=lambda: None if REDIS_SERVER else "redis-server",
    ),
)

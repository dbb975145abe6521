"""F50: Redis loses all its data while a thousand sessions are idle."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import Credentials, ForkRequest
from continuo.realtime.registry.recovery import Recovery
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from continuo.realtime.store import StoreUnavailable
from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import continue_and_close
from tests.faults.deployment import (
    Deployment,
    ExpectedConversation,
    open_when_available,
    running_deployment,
)
from tests.faults.row import FaultRow
from tests.faults.stores import TIMEOUT_FACTOR, open_conversation
from tests.support.waiting import wait_until

T = TypeVar("T")

SESSIONS = 1_000
TURNS = 20
RESUMED_SESSIONS = 8
"""More sessions, of clients on a network, which resume them at another gateway."""
RECOVERED_S_MAX = 10.0
BUSY_S_MAX = 60.0
TENANT = "default"
AT_ONCE = 5
"""Sessions that are opened or closed at once."""


class IdleSession:
    """An open session without a network, connected or parked, and the gateway that has it."""

    def __init__(self, registry: Registry, session: Session) -> None:
        self.registry = registry
        self.session = session

    @classmethod
    async def fork(cls, registry: Registry, of: str) -> "IdleSession":
        credentials, fork = Credentials(TENANT), ForkRequest(of)
        open_fork = partial(
            registry.open,
            lambda _: None,
            credentials=credentials,
            close_connection=_close,
            fork=fork,
        )
        return cls(registry, await _patiently(open_fork))

    async def park(self) -> None:
        await self.registry.park(self.session, _close)

    async def close(self) -> None:
        await self.registry.close(self.session)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again while the machine is too busy for Redis to answer in time."""
    async with asyncio.timeout(BUSY_S_MAX):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                continue
            except Refusal as refusal:
                if refusal.code != "store_unavailable":
                    raise


def _close(_code: CloseCode, _reason: str) -> None:
    """Do nothing: the session has no network."""


async def empty_redis(deployment: Deployment, rng: Random) -> None:
    """Empty Redis by FLUSHALL, or by a restart without its files: all sessions are in it again."""
    client, expected = await open_conversation(deployment, rng.randrange(2))
    for n in range(TURNS):
        await client.add_message(f"turn {n}")
        expected.add_user_message(f"turn {n}")
        text = expected.compute_response(4)
        assert await client.complete_response(max_output_tokens=4) == text
    idle = await _fork_sessions(deployment, client.session_id, rng)
    networked = [
        await _fork_client(deployment, client, expected, n) for n in range(RESUMED_SESSIONS)
    ]
    before = await _load_all(deployment, idle)
    if rng.random() < 0.5:
        async with deployment.redis.client() as admin:
            await admin.flushall()
    else:
        deployment.redis.kill()
        shutil.rmtree(deployment.redis.folder / "appendonlydir")
        await deployment.redis.start()
    await _wait_until_recovered(deployment)
    after = await _load_all(deployment, idle)
    lost = [id for id in before if after[id] != before[id]]
    assert not lost, f"{len(lost)} of {SESSIONS} sessions are not as they were"
    for forked, conversation in networked:
        items = list(forked.item_ids)
        forked.urls = deployment.urls[(forked.gateway_index + 1) % 2 :][:1]
        await forked.reconnect()
        assert forked.item_ids == items
        await continue_and_close(forked, conversation)
    await client.reconnect()
    await continue_and_close(client, expected)
    for some in _batched(idle):
        await asyncio.gather(*(each.close() for each in some))


def _batched(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[n : n + AT_ONCE] for n in range(0, len(values), AT_ONCE))


async def _fork_sessions(deployment: Deployment, of: str, rng: Random) -> list[IdleSession]:
    """Open SESSIONS copies of a session at the gateways in turn, and park half of them."""
    sessions: list[IdleSession] = []
    for some in _batched(range(SESSIONS)):
        forking = (IdleSession.fork(deployment.gateways[n % 2].registry, of) for n in some)
        sessions += await asyncio.gather(*forking)
    for some in _batched(rng.sample(sessions, SESSIONS // 2)):
        await asyncio.gather(*(each.park() for each in some))
    return sessions


async def _fork_client(
    deployment: Deployment, client: ReconnectingClient, expected: ExpectedConversation, n: int
) -> tuple[ReconnectingClient, ExpectedConversation]:
    """Connect a client to a copy of a session; every other one disconnects then."""
    forked, conversation = deployment.create_client(), deployment.expected_conversation()
    forked.urls = [f"{deployment.urls[n // 2 % 2]}?fork={client.session_id}"]
    await forked.connect()
    await forked.synchronize()
    assert forked.item_ids == client.item_ids
    conversation.ids = list(expected.ids)
    forked.gateway_index = n // 2 % 2
    if n % 2:
        await forked.disconnect()
    return forked, conversation


async def _load_all(deployment: Deployment, sessions: list[IdleSession]) -> dict[str, object]:
    """Read sessions from Redis as another gateway would: their content, and whether they are
    parked. Raises AssertionError if one is missing."""
    store = await open_when_available(deployment.redis.url, "normal")
    loaded: dict[str, object] = {}
    try:
        for session_id in (each.session.id for each in sessions):
            found = await _patiently(partial(store.load, session_id))
            assert found is not None, f"{session_id} is lost"
            assert len(found.entries) >= 2 * TURNS
            loaded[session_id] = (found.entries, found.state, found.metadata.is_parked)
    finally:
        await store.aclose()
    return loaded


async def _wait_until_recovered(deployment: Deployment) -> None:
    async with asyncio.timeout(RECOVERED_S_MAX * TIMEOUT_FACTOR):
        recoveries = [gateway.registry.recovery for gateway in deployment.gateways]
        await asyncio.gather(*(_wait_until_recovering(each) for each in recoveries))
        await wait_until(
            lambda: not any(each.is_recovering for each in recoveries),
            RECOVERED_S_MAX * TIMEOUT_FACTOR,
        )


async def _wait_until_recovering(recovery: Recovery) -> None:
    await wait_until(lambda: recovery.is_recovering, RECOVERED_S_MAX * TIMEOUT_FACTOR)


ROWS = (
    FaultRow(
        id="F50",
        fault="FLUSHALL, or a restart with an empty disk, under 1,000 sessions of 20 turns at two "
        "gateways, idle or parked",
        expectation="after 10 s every session is in the store again, as it was, and is resumed at "
        "the other gateway; none is lost",
        environment=running_deployment,
        trial=empty_redis,
        full_trials=5,
        quick_trials=1,
    ),
)

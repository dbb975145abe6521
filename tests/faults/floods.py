"""F34: one tenant floods the gateways: connections, sessions, requests, tokens, frames, bytes.

Each limit must be hit at its configured value, within LIMIT_TOLERANCE where several gateways count
together or the amount is known only afterwards, else exactly. Another tenant converses meanwhile.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from continuo.realtime.limits import Limits, TenantLimits
from continuo.realtime.server.incoming_budget import IncomingShare
from continuo.realtime.tenants.tenants import EXCHANGE_INTERVAL_S, Tenant
from tests.faults.cluster import TIMEOUT_FACTOR
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.outages import Outages, counted_outages
from tests.faults.row import FaultRow
from tests.faults.stopwatch import Stopwatch
from tests.support.clients import JsonEvent
from tests.support.frames import BINARY, RawWebSocket, encode_frame
from tests.support.identity_provider import bearer
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer

LIMIT_TOLERANCE = 0.05
FLOODS_MAX = 1000
INCOMING_BYTES_MAX = 8 * 1024 * 1024
FRAME_BYTES_MAX = 256 * 1024
BAD_FRAMES_MAX = 32
FLOOD_STEP_S = 0.01
SETTLE_S = 3.0
"""How long a flood of requests continues after the first refusal of each gateway."""
OTHER_TURN_S_MAX = 2.0 * TIMEOUT_FACTOR


class Flooded(msgspec.Struct):
    """A deployment in which each flood is that of a tenant of its own."""

    deployment: Deployment
    outages: Outages
    limits: dict[str, TenantLimits] = {}
    """Limits by tenant; other tenants have none."""
    numbers: "itertools.count[int]" = msgspec.field(default_factory=itertools.count)

    def limit_next_tenant(self, **limits: int) -> tuple[str, dict[str, str]]:
        """Set the limits of the next tenant at all gateways. Returns its name, and the headers with
        its key."""
        number = next(self.numbers) % FLOODS_MAX
        name = f"flood-{number}"
        self.limits[name] = TenantLimits(**limits)
        for gateway in self.deployment.gateways:
            gateway.registry.tenants.replace_limits(
                lambda tenant, _claimed: self.limits.get(tenant, TenantLimits())
            )
        return name, bearer(f"key-of-{name}")


async def flood(flooded: Flooded, rng: Random) -> None:
    """Let one tenant flood the gateways in one way; another tenant must notice nothing."""
    ended = asyncio.Event()
    conversing = asyncio.create_task(converse(flooded.deployment, ended))
    try:
        await rng.choice(FLOODS)(flooded, rng)
    finally:
        flooded.deployment.engine_harness.runner.step_s = 0
        ended.set()
        await asyncio.wait([conversing])
    conversing.result()
    await flooded.deployment.assert_balanced()


async def converse(deployment: Deployment, ended: asyncio.Event) -> None:
    """Hold conversations at the gateways in turn until `ended`: no limit may refuse anything."""
    for turn in itertools.count():
        stopwatch = Stopwatch()
        client, expected = deployment.create_client(turn % 2), deployment.expected_conversation()
        while (first := await client.connect())["type"] != "session.created":
            assert_is_store_outage(first)
        await client.add_message("hello", "item_hello")
        expected.add_user_message("hello")
        response = await client.start_response(max_output_tokens=6)
        assert await client.wait_response(response) == expected.compute_response(6)
        assert client.item_ids[0] == "item_hello"
        assert client.close_codes == set()
        await client.close_session()
        assert stopwatch.elapsed_s < OTHER_TURN_S_MAX
        if ended.is_set():
            return
        await asyncio.sleep(0.05)


def assert_is_store_outage(event: JsonEvent) -> None:
    """Assert that an error only means that the machine is too busy for Redis."""
    assert event["error"]["code"] == "store_unavailable", event


# ---------------------------------------------------------------- connections and sessions


async def open_connections(flooded: Flooded, rng: Random) -> None:
    """Twice as many connections at once as the tenant may have, and as many again after some have
    ended: exactly the limit is open. Another gateway accepts none beside them."""
    limit = rng.randrange(20, 41)
    name, headers = flooded.limit_next_tenant(connections_max=limit)
    server, other = rng.sample(flooded.deployment.gateways, 2)
    tenant = server.registry.tenants.of(name)
    accepted = await open_sessions([server], 2 * limit, headers, f"the limit is {limit}")
    assert len(accepted) == limit
    await asyncio.sleep(2 * EXCHANGE_INTERVAL_S)
    assert await open_sessions([other], 3, headers, f"the limit is {limit}") == []
    ended = rng.randrange(1, limit)
    for peer in accepted[:ended]:
        peer.reset()
    await wait_until(lambda: tenant.ledger.connections == limit - ended, 20 * TIMEOUT_FACTOR)
    again = await open_sessions([server], limit, headers, f"the limit is {limit}")
    assert len(again) == ended
    await close_all([*accepted[ended:], *again], tenant)


async def open_many_sessions(flooded: Flooded, rng: Random) -> None:
    """More sessions at once than the tenant may have, at two gateways: the store counts them."""
    limit = rng.randrange(40, 61)
    name, headers = flooded.limit_next_tenant(sessions_max=limit)
    gateways = flooded.deployment.gateways
    accepted = await open_sessions(gateways, limit * 3 // 2, headers, f"the limit is {limit}")
    assert limit <= len(accepted) <= limit * (1 + LIMIT_TOLERANCE)
    assert await open_sessions(gateways, 4, headers, f"the limit is {limit}") == []
    for peer in accepted:
        await peer.send_event(type="session.close")
        await peer.wait_for("session.closed")
    await close_all(accepted, *(gateway.registry.tenants.of(name) for gateway in gateways))


async def open_sessions(
    gateways: list[RunningServer], count: int, headers: dict[str, str], refusal: str
) -> list[RawWebSocket]:
    """Connect `count` times at once. Returns the connections that got a session; the others were
    closed with 1013 after an error that contains `refusal`."""
    ports = [gateways[n % len(gateways)].port for n in range(count)]
    opened = await asyncio.gather(*(open_session(port, headers) for port in ports))
    accepted: list[RawWebSocket] = []
    for peer, first in opened:
        if first["type"] == "session.created":
            accepted.append(peer)
            continue
        assert first["error"]["code"] == "rate_limit_exceeded"
        assert refusal in first["error"]["message"]
        assert await peer.wait_close_code() == 1013
        peer.close()
    return accepted


async def open_session(port: int, headers: dict[str, str]) -> tuple[RawWebSocket, JsonEvent]:
    """Connect. Returns the connection and its first event."""
    while True:
        peer = await RawWebSocket.connect(port, **headers)
        first = await peer.receive_event()
        if first["type"] == "session.created" or first["error"]["code"] != "store_unavailable":
            return peer, first
        peer.reset()


async def close_all(peers: list[RawWebSocket], *tenants: Tenant) -> None:
    for peer in peers:
        peer.reset()
    await wait_until(lambda: not any(tenant.ledger.connections for tenant in tenants), 60)


# ---------------------------------------------------------------- responses and tokens


async def request_responses_at_once(flooded: Flooded, rng: Random) -> None:
    """More responses than may run and wait at one gateway."""
    running, waiting = rng.randrange(2, 5), rng.randrange(5, 20)
    name, headers = flooded.limit_next_tenant(
        running_responses_max=running, waiting_responses_max=waiting
    )
    server = rng.choice(flooded.deployment.gateways)
    turns = server.registry.tenants.of(name).turns
    flooded.deployment.engine_harness.runner.step_s = FLOOD_STEP_S
    body = request_body(600, background=True)
    replies: list[tuple[int, JsonEvent]] = []
    while len(replies) < 2 * (running + waiting):
        status, reply = await server.request("POST", "/v1/responses", body, headers)
        replies += [] if status == 503 else [(status, reply)]
    accepted = [reply["id"] for status, reply in replies if status == 200]
    assert len(accepted) == running + waiting
    assert (turns.running_count, turns.waiting_count) == (running, waiting)
    refused = [reply["error"]["code"] for status, reply in replies if status == 429]
    assert refused == ["rate_limit_exceeded"] * (running + waiting)
    for response in rng.sample(accepted, len(accepted)):
        await server.request("POST", f"/v1/responses/{response}/cancel", headers=headers)
    await wait_until(lambda: turns.running_count + turns.waiting_count == 0, 60)


async def request_many_responses(flooded: Flooded, rng: Random) -> None:
    """More requests than the tenant may make in a minute, at two gateways. Again if Redis has not
    answered: what a gateway then charges again, it may have charged before."""
    limit = rng.randrange(60, 100)
    _, headers = flooded.limit_next_tenant(requests_per_minute=limit)
    outages = flooded.outages.count
    granted, elapsed_s = await request_until_refused(
        flooded.deployment.gateways, headers, lambda _reply: 1, clients=4, interval_s=0.5
    )
    if flooded.outages.count > outages:
        await request_many_responses(flooded, rng)
        return
    assert_is_at_limit(granted, limit * (1 + elapsed_s / 60))


async def request_many_tokens(flooded: Flooded, rng: Random) -> None:
    """Responses whose tokens are more than the tenant may use in a minute, at one gateway."""
    limit = rng.randrange(3000, 4000)
    _, headers = flooded.limit_next_tenant(tokens_per_minute=limit)
    server = rng.choice(flooded.deployment.gateways)
    used, elapsed_s = await request_until_refused(
        [server], headers, count_computed_tokens, clients=2, interval_s=0.05, tokens=20
    )
    assert_is_at_limit(used, limit * (1 + elapsed_s / 60))


async def request_until_refused(
    gateways: list[RunningServer],
    headers: dict[str, str],
    count: Callable[[JsonEvent], int],
    *,
    clients: int,
    interval_s: float,
    tokens: int = 1,
) -> tuple[int, float]:
    """Request responses by several clients at each gateway, for SETTLE_S after the first refusal of
    each. Returns the sum of what `count` counts in each response, and the duration.

    `interval_s`: pause of a client. Between two exchanges with the store, a gateway knows nothing
    of what the others grant."""
    began_s = time.monotonic()
    refused_s: dict[RunningServer, float] = {}
    total = 0

    def is_settled() -> bool:
        is_refused = len(refused_s) == len(gateways)
        return is_refused and time.monotonic() > max(refused_s.values()) + SETTLE_S

    async def work(server: RunningServer) -> None:
        nonlocal total
        while not is_settled():
            status, received, reply = await server.exchange(
                "POST", "/v1/responses", request_body(tokens), headers
            )
            if status == 200:
                total += count(reply)
                await asyncio.sleep(interval_s)
                continue
            if status == 503:
                assert_is_store_outage(reply)
                continue
            assert (status, reply["error"]["code"]) == (429, "rate_limit_exceeded"), reply
            assert int(received["retry-after"]) > 0
            refused_s.setdefault(server, time.monotonic())
            await asyncio.sleep(interval_s)

    async with asyncio.timeout(300):
        await asyncio.gather(*(work(server) for server in gateways for _ in range(clients)))
    return total, time.monotonic() - began_s


def request_body(tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "input": "hello", "max_output_tokens": tokens, "ignore_eos": True}
    return {**body, **fields}


def count_computed_tokens(reply: JsonEvent) -> int:
    usage = reply["usage"]
    cached: int = usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"] - cached + usage["output_tokens"]


def assert_is_at_limit(amount: float, limit: float) -> None:
    assert abs(amount - limit) <= LIMIT_TOLERANCE * limit, f"{amount:,} with a limit of {limit:,}"


# ---------------------------------------------------------------- frames and bytes


async def send_unfinished_messages(flooded: Flooded, rng: Random) -> None:
    """Twice as many bytes of unfinished messages as a gateway holds: the largest are refused."""
    _, headers = flooded.limit_next_tenant()
    server = rng.choice(flooded.deployment.gateways)
    budget = server.web_server.incoming_budget
    refused_before, peak_bytes, charge = budget.refused_count, 0, budget.charge
    peers = [(await open_session(server.port, headers))[0] for _ in range(40)]
    size = 2 * INCOMING_BYTES_MAX // len(peers)

    def record_peak(share: IncomingShare, unfinished: int, charged: int) -> None:
        nonlocal peak_bytes
        charge(share, unfinished, charged)
        peak_bytes = max(peak_bytes, budget.charged_bytes)

    async def send(peer: RawWebSocket) -> None:
        await peer.send(encode_frame(b"", BINARY, length=size + 1))
        with suppress(ConnectionError):
            for _ in range(size // 8192):
                peer.writer.write(bytes(8192))
                await peer.writer.drain()
                await asyncio.sleep(0)

    with patch.object(budget, "charge", record_peak):
        await asyncio.gather(*(send(peer) for peer in peers))
        await wait_until(lambda: budget.refused_count > refused_before, 60)
    assert_is_at_limit(peak_bytes, INCOMING_BYTES_MAX)
    for peer in peers:
        peer.reset()
    await wait_until(lambda: budget.charged_bytes == 0, 60)


async def send_frames(flooded: Flooded, rng: Random) -> None:
    """Frames as long as permitted and longer by one byte; as many malformed ones as permitted;
    thousands of small ones, each of which gets its reply."""
    _, headers = flooded.limit_next_tenant()
    server = rng.choice(flooded.deployment.gateways)
    peer, _ = await open_session(server.port, headers)
    for extra, code in ((0, "invalid_json"), (1, "frame_too_large")):
        await peer.send(encode_frame(b"x" * (FRAME_BYTES_MAX + extra)))
        assert (await peer.receive_event())["error"]["code"] == code
    clear = encode_frame(json.dumps({"type": "input_audio_buffer.clear"}))
    await peer.send(clear)
    await peer.wait_for("input_audio_buffer.cleared")
    await peer.send(encode_frame("?") * (BAD_FRAMES_MAX - 1) + clear)
    await peer.wait_for("input_audio_buffer.cleared")
    await peer.send(encode_frame("?") * BAD_FRAMES_MAX + clear)
    for _ in range(BAD_FRAMES_MAX):
        assert (await peer.receive_event())["error"]["code"] == "invalid_json"
    assert await peer.wait_close_code() == 1007
    peer.close()
    await asyncio.gather(
        *(send_small_frames(server, headers, clear, rng.randrange(500, 2000)) for _ in range(4))
    )


async def send_small_frames(
    server: RunningServer, headers: dict[str, str], frame: bytes, count: int
) -> None:
    peer, _ = await open_session(server.port, headers)
    sending = asyncio.create_task(peer.send(frame * count))
    for _ in range(count):
        assert (await peer.receive_event())["type"] == "input_audio_buffer.cleared"
    await sending
    peer.close()


FLOODS: list[Callable[[Flooded, Random], Awaitable[None]]] = [
    request_many_tokens,
    send_frames,
    request_many_responses,
    send_unfinished_messages,
    request_responses_at_once,
    open_many_sessions,
    open_connections,
]


@asynccontextmanager
async def deployment_with_tenants(folder: Path) -> AsyncIterator[Flooded]:
    names = [f"flood-{n}" for n in range(FLOODS_MAX)]
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(
            running_deployment(
                folder,
                limits=Limits(
                    incoming_bytes_max=INCOMING_BYTES_MAX,
                    frame_bytes_max=FRAME_BYTES_MAX,
                    bad_frames_max=BAD_FRAMES_MAX,
                ),
                tenants={API_KEY: "default", **{f"key-of-{name}": name for name in names}},
            )
        )
        for gateway in deployment.gateways:
            registry = gateway.registry
            exchanging = registry.tenants.exchanging(registry._store, lambda _tenant: None)
            await stack.enter_async_context(exchanging)
        yield Flooded(deployment, stack.enter_context(counted_outages()))


ROWS = (
    FaultRow(
        id="F34",
        fault="one tenant floods the gateways: connections, sessions, responses at once, requests "
        "and tokens a minute, malformed, long and small frames, bytes of unfinished messages",
        expectation="each limit is hit at its value, exactly or, if gateways count it together or "
        "afterwards, within 5 %; another tenant's turns are as expected, without a refusal",
        environment=deployment_with_tenants,
        trial=flood,
        full_trials=50,
        quick_trials=2,
    ),
)

"""F4: SIGTERM to a gateway or an engine during several conversations, in some trials twice."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR, Cluster, continue_and_close, running_cluster
from tests.faults.deaths import start_expected_response
from tests.faults.deployment import ExpectedConversation
from tests.faults.row import FaultRow
from tests.support.processes import Process, http_status
from tests.support.waiting import wait_until

SECOND_SIGNAL_HINT = "again to stop at once"
SIGNAL_INTERVAL_S = 0.2
"""Pause between two signals: signals sent together are delivered as one."""


async def drain_process(cluster: Cluster, rng: Random) -> None:
    trial = drain_engine if rng.random() < 0.4 else drain_gateway
    await trial(cluster, rng, twice=rng.random() < 0.3)


async def drain_gateway(cluster: Cluster, rng: Random, *, twice: bool) -> None:
    """Drain a gateway: new clients are refused; open responses finish, then 1012."""
    draining = rng.randrange(2)
    gateway, url = cluster.gateways[draining], cluster.urls[draining]
    conversations = [await cluster.open_conversation(draining) for _ in range(3)]
    (first, _), _, (idle, _) = conversations
    responses = [
        (client, *await start_expected_response(client, expected))
        for client, expected in conversations[:2]
    ]
    await first.wait_deltas(rng.randrange(30))
    gateway.send_signal(signal.SIGTERM)
    await wait_until(lambda: SECOND_SIGNAL_HINT in gateway.output, 60)
    assert await idle.wait_close_code() == 1012
    assert await http_status(url, "/health/ready") == 503
    with pytest.raises(InvalidStatus) as refused:
        await ReconnectingClient(url).connect()
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"]
    if twice:
        await send_second_sigterm(gateway)
    else:
        for client, response, text in responses:
            assert await wait_response_on_connection(client, response) == text
            assert await client.wait_close_code() == 1012
        assert await gateway.wait_exit() == 0
    for client, response, text in responses:
        assert await client.wait_response(response) == text
    await cluster.restart_gateway(draining)
    await continue_and_close_all(cluster, conversations)


async def drain_engine(cluster: Cluster, rng: Random, *, twice: bool) -> None:
    """Drain an engine: turns finish, or move to the other engine after a second signal."""
    draining = rng.randrange(2)
    engine = cluster.engines[draining]
    conversations = [await cluster.open_conversation(n % 2) for n in range(4)]
    responses = [
        (client, *await start_expected_response(client, expected))
        for client, expected in conversations[:3]
    ]
    await responses[0][0].wait_deltas(rng.randrange(30))
    engine.send_signal(signal.SIGTERM)
    await wait_until(lambda: SECOND_SIGNAL_HINT in engine.output, 60)
    if twice:
        await send_second_sigterm(engine)
    for client, response, text in responses:
        assert await client.wait_response(response) == text
    assert not any(client.resume_outcomes for client, _ in conversations), (
        "a client lost its connection"
    )
    if not twice:
        assert await engine.wait_exit() == 0
    assert [await http_status(url, "/health/ready") for url in cluster.urls] == [200, 200]
    for client, expected in conversations:
        await client.add_message("are you there?")
        expected.add_user_message("are you there?")
        assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await cluster.restart_engine(draining)
    await continue_and_close_all(cluster, conversations)


async def send_second_sigterm(process: Process) -> None:
    await asyncio.sleep(SIGNAL_INTERVAL_S)
    process.send_signal(signal.SIGTERM)
    before_s = time.monotonic()
    assert await process.wait_exit() == 1
    assert time.monotonic() - before_s < 2 * TIMEOUT_FACTOR


async def wait_response_on_connection(client: ReconnectingClient, response: str) -> str:
    """Receive until the response has ended. Raises if the connection closes before."""
    while response not in client.ended_responses:
        try:
            await client.wait_for("response.done")
        except ConnectionClosed as closed:
            raise AssertionError("closed during a response") from closed
    return client.response_texts[response]


async def continue_and_close_all(
    cluster: Cluster, conversations: list[tuple[ReconnectingClient, ExpectedConversation]]
) -> None:
    await cluster.wait_ready()
    for client, expected in conversations:
        await continue_and_close(client, expected)
    await cluster.assert_balanced()


@asynccontextmanager
async def cluster_of_two_engines_and_gateways(folder: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(folder, engines=2, gateways=2) as cluster:
        yield cluster


ROWS = (
    FaultRow(
        id="F4",
        fault="SIGTERM to a gateway or an engine during several responses; in some trials twice",
        expectation="no new sessions, the responses end, close 1012, exit 0; at the second "
        "signal it exits at once",
        environment=cluster_of_two_engines_and_gateways,
        trial=drain_process,
        full_trials=50,
        quick_trials=2,
    ),
)

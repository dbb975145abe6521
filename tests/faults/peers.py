"""F13 and F14: half-open connections, and connections reset or closed within a frame."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

from continuo.realtime.server.process import web_server
from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.proxy import Proxy
from tests.faults.row import FaultRow
from tests.support.waiting import wait_until

PING_INTERVAL_S = 0.3
"""Ping interval of the gateways under test."""
TIMEOUT_FACTOR = 5
"""Multiple of every time bound that the tests allow, for a busy machine."""


async def make_half_open(deployment: Deployment, rng: Random) -> None:
    """Discard the bytes of one or both directions, or stall the connection, without a FIN.

    The gateway must detect the loss by its pings and park the session, which is resumed exactly.
    """
    (proxy,) = deployment.proxies
    client, expected = (
        ReconnectingClient(proxy.url(), deployment.urls[1]),
        deployment.expected_conversation(),
    )
    await client.connect()
    await client.add_message("hello")
    expected.add_user_message("hello")
    response = await client.start_response(max_output_tokens=60)
    text = expected.compute_response(60)
    await client.wait_deltas(rng.randrange(8))
    match rng.choice(["both", "both", "up", "down", "stalled"]):
        case "both":
            proxy.discarded_directions = {"up", "down"}
        case "up":
            proxy.discarded_directions = {"up"}
        case "down":
            proxy.discarded_directions = {"down"}
        case _:
            proxy.stall()
    try:
        await wait_until(
            lambda: len(deployment.gateways[0].registry) == 0, 2 * PING_INTERVAL_S * TIMEOUT_FACTOR
        )
    finally:
        proxy.reset_connections()
        proxy.clear_faults()
    await client.reconnect()
    assert client.resume_outcomes[-1] == "exact"
    assert await client.wait_response(response) == text
    await client.close_session()


async def disconnect_within_frame(deployment: Deployment, rng: Random) -> None:
    """Reset or close the connection within a frame of either direction: the frame is discarded."""
    (proxy,) = deployment.proxies
    proxy.clear_faults()
    client, expected = (
        ReconnectingClient(proxy.url(), *deployment.urls),
        deployment.expected_conversation(),
    )
    await client.connect()
    await client.add_message("hello")
    expected.add_user_message("hello")
    proxy.delay_s = rng.choice([0, 0.01])
    proxy.disconnect_after("up", rng.randrange(1, 150), fin=rng.random() < 0.5)
    await client.send_message("x" * 200, "item_half")
    assert await client.wait_close_code() == 1006
    await client.reconnect()
    assert "item_half" not in client.item_ids, "half a frame was appended"
    await client.add_message("x" * 200, "item_half")
    expected.add_user_message("x" * 200)
    client.gateway_index = 0
    await client.disconnect()
    await client.connect()
    response = await client.start_response(max_output_tokens=60)
    proxy.disconnect_after("down", rng.randrange(1, 8000), fin=rng.random() < 0.5)
    assert await client.wait_response(response) == expected.compute_response(60)
    assert set(client.resume_outcomes) == {"exact"}
    await client.close_session()


@asynccontextmanager
async def deployment_behind_proxy(folder: Path) -> AsyncIterator[Deployment]:
    with patch.object(web_server, "PING_S", PING_INTERVAL_S):
        async with (
            running_deployment(folder) as deployment,
            Proxy(deployment.gateways[0].port).running() as proxy,
        ):
            deployment.proxies.append(proxy)
            yield deployment


ROWS = (
    FaultRow(
        id="F13",
        fault="a half-open connection: bytes are dropped, one way or both, or stall",
        expectation="detected within two pings; the session is parked and resumed exactly",
        environment=deployment_behind_proxy,
        trial=make_half_open,
        full_trials=100,
        quick_trials=3,
    ),
    FaultRow(
        id="F14",
        fault="RST or FIN within a frame of the client or the server, on a slow link or a fast one",
        expectation="a partial append has no effect; the response is resumed exactly",
        environment=deployment_behind_proxy,
        trial=disconnect_within_frame,
        full_trials=100,
        quick_trials=5,
    ),
)

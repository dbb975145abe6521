"""F38: all clients reconnect at once, without jitter, to a gateway with fewer places."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from continuo.realtime.limits import Limits
from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR
from tests.faults.deployment import Deployment, ExpectedConversation, running_deployment
from tests.faults.row import FaultRow
from tests.faults.stores import open_conversation
from tests.support.waiting import wait_until

PLACES = 20
"""Connected sessions that each gateway accepts."""
CLIENTS = 36
HEALTH_S_MAX = 1.0 * TIMEOUT_FACTOR


async def reconnect_all_at_once(deployment: Deployment, rng: Random) -> None:
    """Disconnect all clients of two gateways, and let all of them resume at one."""
    conversations = [await open_conversation(deployment, n % 2) for n in range(CLIENTS)]
    surviving = rng.randrange(2)
    for client, _ in conversations:
        await client.disconnect()
        client.urls = [deployment.urls[surviving]]
    measuring = asyncio.create_task(measure_health(deployment, surviving))
    connected: set[ReconnectingClient] = set()

    def all_have_tried() -> bool:
        return all(client in connected or client.refused_with for client, _ in conversations)

    async def resume_and_close(client: ReconnectingClient, expected: ExpectedConversation) -> None:
        """Resume, at the first attempt that is accepted, and give the place to another client."""
        await client.reconnect()
        connected.add(client)
        assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
        await wait_until(all_have_tried, 60)
        await client.close_session()

    await asyncio.gather(*(resume_and_close(*conversation) for conversation in conversations))
    measuring.cancel()
    refused_with = set[str]().union(*(client.refused_with for client, _ in conversations))
    assert refused_with == {"rate_limit_exceeded"}, "there are fewer places than clients"
    for client, _ in conversations:
        assert client.resume_outcomes == ["exact"]
    await deployment.assert_balanced()


async def measure_health(deployment: Deployment, gateway: int) -> None:
    while True:
        began_s = time.monotonic()
        await deployment.gateways[gateway].request("GET", "/v1/models")
        assert time.monotonic() - began_s < HEALTH_S_MAX
        await asyncio.sleep(0.05)


@asynccontextmanager
async def deployment_with_few_places(folder: Path) -> AsyncIterator[Deployment]:
    async with running_deployment(
        folder, limits=Limits(connected_sessions_max=PLACES)
    ) as deployment:
        yield deployment


ROWS = (
    FaultRow(
        id="F38",
        fault="36 clients of two gateways reconnect to one of them at once, which has 20 places, "
        "and try again without jitter",
        expectation="those without a place are refused for now; all resume exactly and get their "
        "response; other requests are answered meanwhile",
        environment=deployment_with_few_places,
        trial=reconnect_all_at_once,
        full_trials=10,
        quick_trials=1,
    ),
)

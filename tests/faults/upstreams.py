"""F51 and F52: another server that computes for an engine, or gateways and engines before it, are
killed during responses. The servers are fakes of vLLM and llama-server, each in a process of its
own."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import (
    TIMEOUT_FACTOR,
    Cluster,
    continue_and_close,
    started,
)
from tests.faults.deaths import expect_interruption
from tests.faults.deployment import ExpectedConversation
from tests.faults.row import FaultRow
from tests.support.ports import free_port
from tests.support.processes import Process, wait_ready
from tests.support.redis_process import RedisProcess
from tests.support.upstream_engines import FAKES

SESSIONS = 6
RESPONSE_TOKENS = 300
STEP_S = 0.02
"""Duration of an id, so that a response outlasts a fault."""
SEEDS = 2**31


class UpstreamCluster(Cluster):
    """A cluster whose engines have no device: engine n computes on server n, a fake."""

    response_tokens = RESPONSE_TOKENS
    seeded_temperature = 1.0
    """Temperature of the responses with a seed and a penalty."""

    def __init__(self, folder: Path, redis: RedisProcess) -> None:
        super().__init__(folder, redis)
        self.servers: list[Any] = []
        self._kinds: list[str] = []
        self._server_ports: list[int] = []

    async def add_server(self, kind: str) -> None:
        """Start a server of a kind, and the engine before it."""
        self._kinds.append(kind)
        self._server_ports.append(free_port())
        self.servers.append(await self._server(len(self.servers)))
        await self.add_engine()

    async def restart_server(self, n: int) -> None:
        self.servers[n].stop()
        self.servers[n] = await self._server(n)

    async def _server(self, n: int) -> Any:
        """Start server n. Returns it: something with `send_signal` and `stop`."""
        arguments = (self._kinds[n], str(self._server_ports[n]), str(self._model_folder))
        process = Process(*arguments, str(STEP_S), module="tests.support.upstream_host")
        return await started(process, lambda server: server.wait_for_output("(Serving .*)"))

    def _run_engine(self, port: int) -> Process:
        url = f"http://127.0.0.1:{self._server_ports[self._engine_ports.index(port)]}"
        options = ("--model", str(self._model_folder), "--engine-url", url)
        return Process("engine", "--listen", f"127.0.0.1:{port}", *options)

    def stop(self) -> None:
        super().stop()
        for server in self.servers:
            server.stop()


@asynccontextmanager
async def running_upstreams(
    folder: Path, make: type[UpstreamCluster] = UpstreamCluster, kinds: Iterable[str] = FAKES
) -> AsyncIterator[UpstreamCluster]:
    """Run a server of each kind, an engine before each, and two gateways before both."""
    redis = RedisProcess(folder / "redis", "--appendonly", "yes", "--appendfsync", "everysec")
    await redis.start()
    cluster = make(folder, redis)
    try:
        for kind in kinds:
            await cluster.add_server(kind)
        for _ in range(2):
            await cluster.add_gateway()
        await cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        redis.kill()


class RunningResponse(NamedTuple):
    client: ReconnectingClient
    expected: ExpectedConversation
    id: str
    text: str


async def start_responses(cluster: UpstreamCluster, rng: Random) -> list[RunningResponse]:
    """Start responses of new sessions at both gateways: half of them greedy, half with a seed and a
    penalty, whose output is repeated after a loss. All have begun when this returns."""
    conversations = [await cluster.open_conversation(n % 2) for n in range(SESSIONS)]
    for client, _ in conversations:
        include = {"type": "realtime", "include": ["response.interrupted"]}
        await client.send(type="session.update", session=include)
        await client.wait_for("session.updated")
    seeds = [rng.randrange(SEEDS) if n // 2 % 2 else None for n in range(SESSIONS)]
    deltas = [1 + rng.randrange(20) for _ in range(SESSIONS)]
    tokens = cluster.response_tokens
    texts = [
        expected.compute_response(tokens, ignore_eos=True, seed=seed)
        for (_, expected), seed in zip(conversations, seeds, strict=True)
    ]
    ids = await asyncio.gather(
        *(
            start_response(client, tokens, seed, cluster.seeded_temperature, count)
            for (client, _), seed, count in zip(conversations, seeds, deltas, strict=True)
        )
    )
    return [
        RunningResponse(client, expected, id, text)
        for (client, expected), id, text in zip(conversations, ids, texts, strict=True)
    ]


async def start_response(
    client: ReconnectingClient, tokens: int, seed: int | None, temperature: float, deltas: int
) -> str:
    """Start a response, with a penalty and a temperature if it has a seed, and receive some deltas.
    Returns its id."""
    settings: dict[str, object] = {"max_output_tokens": tokens, "ignore_eos": True}
    if seed is not None:
        settings |= {"temperature": temperature, "presence_penalty": 0.5, "seed": seed}
    id = await client.start_response(**settings)
    await client.wait_deltas(deltas)
    return id


async def count_interruptions(responses: list[RunningResponse]) -> int:
    """Wait until each response is interrupted or has ended. Returns how many are interrupted."""
    for response in responses:
        await expect_interruption(response.client, response.id)
    return sum(response.id not in response.client.ended_responses for response in responses)


async def finish_responses(responses: list[RunningResponse]) -> None:
    """Assert that each response has its text, and that the conversation continues."""
    for client, _, id, text in responses:
        assert await client.wait_response(id) == text, "text lost, repeated or changed"
        assert set(client.resume_outcomes) <= {"exact"}
    for client, expected, _, _ in responses:
        await continue_and_close(client, expected)


async def kill_servers(cluster: UpstreamCluster, rng: Random) -> None:
    """Kill one or both servers during responses, and start them again."""
    responses = await start_responses(cluster, rng)
    victims = rng.sample(range(len(cluster.servers)), rng.randrange(1, 3))
    for victim in victims:
        cluster.servers[victim].send_signal(signal.SIGKILL)
    if len(victims) == len(cluster.servers):
        async with asyncio.timeout(2 * TIMEOUT_FACTOR):
            assert await count_interruptions(responses)
            for url in cluster.urls:
                await wait_ready(url, 503)
    # At the same time: a vLLM takes a minute to start, and a turn waits for two.
    await asyncio.gather(*map(cluster.restart_server, victims))
    await finish_responses(responses)
    await cluster.wait_ready()
    await cluster.wait_until_unused("sessions")


async def kill_gateway_and_engines(cluster: UpstreamCluster, rng: Random) -> None:
    """Kill a gateway and one or both engines during responses. The servers live on."""
    responses = await start_responses(cluster, rng)
    gateway = rng.randrange(2)
    engines = rng.sample(range(len(cluster.engines)), rng.randrange(1, 3))
    cluster.gateways[gateway].send_signal(signal.SIGKILL)
    for engine in engines:
        cluster.engines[engine].stop()
    for engine in engines:
        await cluster.restart_engine(engine)
    await finish_responses(responses)
    await cluster.restart_gateway(gateway)
    await cluster.wait_ready()
    await cluster.wait_until_unused("sessions")


ROWS = (
    FaultRow(
        id="F51",
        fault="kill -9 of one or both servers behind `--engine-url`, fakes of vLLM and "
        "llama-server, during greedy responses and those with a seed and a penalty",
        expectation="with both killed the clients are notified, and /ready is 503; the responses "
        "continue to the same end, each id once",
        environment=running_upstreams,
        trial=kill_servers,
        full_trials=100,
        quick_trials=2,
    ),
    FaultRow(
        id="F52",
        fault="kill -9 of a gateway and of one or both engines with `--engine-url`, during the "
        "same responses; the servers live on",
        expectation="clients resume exactly at the other gateway; the responses continue to the "
        "same end, each id once",
        environment=running_upstreams,
        trial=kill_gateway_and_engines,
        full_trials=100,
        quick_trials=1,
    ),
)

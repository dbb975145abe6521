"""Cluster: engines, gateways and a Redis, each in a process of its own.

All processes run the real `continuo`, except that the engines run on the null device, which draws
each id from all ids before: a comparison with `ExpectedConversation` shows any lost or duplicated
id. Ports stay the same when a process is restarted.
"""

import asyncio
import contextlib
import functools
import json
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from continuo.engine import ModelText
from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import ExpectedConversation
from tests.realtime.conftest import chat_folder
from tests.support.ports import free_port
from tests.support.processes import (
    CLI_MODULE,
    ROOT,
    Process,
    read_engine_address,
    read_gateway_url,
    wait_ready,
)
from tests.support.redis_process import RedisProcess
from tests.support.web_servers import API_KEY

DIGEST_HOST_MODULE = "tests.support.digest_host"
COUNTED_GATEWAY_MODULE = "tests.support.counted_gateway"
TIMEOUT_FACTOR = 5
"""Multiple of every promised time that the tests allow, for a busy machine."""
BALANCE_TIMEOUT_S = 60.0


class Cluster:
    first_message = "hello"
    """The message with which conversations begin."""

    def __init__(self, folder: Path, redis: RedisProcess, *options: str) -> None:
        """`options`: command-line options of the gateways."""
        self.redis = redis
        self.source = ROOT
        """Source code that processes started from now on run."""
        self.engines: list[Process] = []
        self.gateways: list[Process] = []
        self.gateway_ports: list[int] = []
        self._model_folder = folder / "words"
        self._model_folder.mkdir(parents=True)
        self.text = ModelText(str(chat_folder(self._model_folder)))
        self._options = options
        self._engine_ports: list[int] = []

    @property
    def urls(self) -> list[str]:
        return [f"ws://127.0.0.1:{port}/v1/realtime" for port in self.gateway_ports]

    def create_client(self, first: int = 0) -> ReconnectingClient:
        """Create a client of all gateways that connects to gateway `first` first."""
        return ReconnectingClient(*self.urls[first:], *self.urls[:first])

    def expected_conversation(self) -> ExpectedConversation:
        return ExpectedConversation(self.text)

    async def open_conversation(
        self, first: int = 0
    ) -> tuple[ReconnectingClient, ExpectedConversation]:
        client = self.create_client(first)
        return client, await self.begin_conversation(client)

    async def begin_conversation(self, client: ReconnectingClient) -> ExpectedConversation:
        expected = self.expected_conversation()
        await client.connect()
        await client.add_message(self.first_message)
        expected.add_user_message(self.first_message)
        return expected

    # ------------------------------------------------------------ processes

    async def add_engine(self) -> None:
        self._engine_ports.append(free_port())
        self.engines.append(await self._engine(self._engine_ports[-1]))

    async def add_gateway(self, **env: str) -> None:
        self.gateway_ports.append(free_port())
        self.gateways.append(await self._gateway(self.gateway_ports[-1], env))

    async def restart_engine(self, n: int) -> None:
        """Restart engine `n` on the same port."""
        self.engines[n].stop()
        self.engines[n] = await self._engine(self._engine_ports[n])

    async def restart_gateway(self, n: int, **env: str) -> None:
        self.gateways[n].stop()
        self.gateways[n] = await self._gateway(self.gateway_ports[n], env)

    async def _engine(self, port: int) -> Process:
        return await started(self._run_engine(port), read_engine_address)

    def _run_engine(self, port: int) -> Process:
        options = ("--listen", f"127.0.0.1:{port}", "--model", str(self._model_folder))
        return Process("engine", *options, module=DIGEST_HOST_MODULE, source=self.source)

    async def _gateway(self, port: int, env: dict[str, str]) -> Process:
        engines = [f"--engine=127.0.0.1:{engine}" for engine in self._engine_ports]
        options = ("--port", str(port), "--no-web", "--store", self.redis.url, *engines)
        process = Process(
            "gateway",
            *options,
            *self._options,
            env={"CONTINUO_API_KEY": API_KEY, **env},
            # An older version has no module that counts garbage, or no longer this one.
            module=COUNTED_GATEWAY_MODULE if self.source == ROOT else CLI_MODULE,
            source=self.source,
        )
        return await started(process, read_gateway_url)

    async def wait_ready(self) -> None:
        for url in self.urls:
            await wait_ready(url)

    # ------------------------------------------------------------ statistics

    async def fetch_stats(self, gateway: int = 0) -> dict[str, Any]:
        """Fetch `/v1/stats` of a gateway, which adds up all engines."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway_ports[gateway]}/v1/stats",
            headers={"Authorization": f"Bearer {API_KEY}"},
        )
        fetch = functools.partial(urllib.request.urlopen, request, timeout=10)
        with await asyncio.to_thread(fetch) as response:
            return json.loads(response.read())

    async def assert_balanced(self) -> None:
        """Wait until no session is open; assert that no page is leased and no step failed."""
        stats = await self.wait_until_unused("sessions", "pages_leased")
        assert stats["pages_free"] + stats["pages_tree"] == stats["pages_total"]
        assert stats["failed_steps"] == stats["failed_audits"] == 0
        await self.assert_no_garbage()

    async def assert_no_garbage(self) -> None:
        """Assert that the gateways, which do nothing now, have freed all that they did: what is in
        a reference cycle is frozen, and stays for ever (`collect_garbage`)."""
        for gateway in self.gateways:
            gateway.send_signal(signal.SIGUSR1)
            found = await asyncio.to_thread(gateway.wait_for_output, r"^garbage: (.*)")
            assert found == "{}", f"in reference cycles: {found}"

    async def wait_until_unused(self, *gauges: str) -> dict[str, Any]:
        """Wait until gauges of the engines are 0. Returns the statistics of the engines."""
        async with asyncio.timeout(BALANCE_TIMEOUT_S):
            while True:
                stats = (await self.fetch_stats())["engine"]
                if stats is not None and not any(stats[gauge] for gauge in gauges):
                    return stats
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        for process in (*self.gateways, *self.engines):
            process.stop()


async def started(process: Process, read_address: Any) -> Process:
    """Return a process once `read_address` has read its address; stop it if it has none."""
    try:
        await asyncio.to_thread(read_address, process)
    except BaseException:
        process.stop()
        raise
    return process


@contextlib.asynccontextmanager
async def running_cluster(
    folder: Path, *options: str, engines: int = 1, gateways: int = 1, source: Path = ROOT
) -> AsyncIterator[Cluster]:
    redis = RedisProcess(folder / "redis", "--appendonly", "yes", "--appendfsync", "everysec")
    await redis.start()
    cluster = Cluster(folder, redis, *options)
    cluster.source = source
    try:
        for _ in range(engines):
            await cluster.add_engine()
        for _ in range(gateways):
            await cluster.add_gateway()
        await cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        redis.kill()


async def continue_and_close(client: ReconnectingClient, expected: ExpectedConversation) -> None:
    """Assert that one more turn has the expected text, then close the session."""
    await client.add_message("go on")
    expected.add_user_message("go on")
    assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await client.close_session()

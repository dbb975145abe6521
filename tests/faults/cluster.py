"""Town: engines, gateways and a Redis, each a process of its own.

Everything is `continuo` as it is started, but for the device of the engines, which draws each id
from all that was before it: whoever compares with `Expected` sees what was lost or doubled. Ports
stay the same when a process is killed and started again.
"""

import asyncio
import contextlib
import functools
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from continuo.engine import ModelText
from tests.faults.caller import Caller
from tests.faults.deployment import Expected
from tests.realtime.conftest import chat_folder
from tests.support.processes import Process, address_of, until_ready, url_of
from tests.support.redis_process import RedisProcess, free_port
from tests.support.web_servers import KEY

HOST = "tests.support.digest_host"
TIMES = 5
"""What is promised within so many seconds is waited for this many times as long: the machine may be
busy with other things."""
BOOKS_S = 60.0


class Town:
    def __init__(self, folder: Path, redis: RedisProcess, *options: str) -> None:
        """`options`: of its gateways."""
        self.redis = redis
        self.engines: list[Process] = []
        self.gateways: list[Process] = []
        self.gateway_ports: list[int] = []
        self._words = folder / "words"
        self._words.mkdir(parents=True)
        self.text = ModelText(str(chat_folder(self._words)))
        self._options = options
        self._engine_ports: list[int] = []

    @property
    def urls(self) -> list[str]:
        return [f"ws://127.0.0.1:{port}/v1/realtime" for port in self.gateway_ports]

    def caller(self, first: int = 0) -> Caller:
        """Of all gateways, beginning with one."""
        return Caller(*self.urls[first:], *self.urls[:first])

    def expected(self) -> Expected:
        return Expected(self.text)

    async def talking(self, first: int = 0) -> tuple[Caller, Expected]:
        caller, expected = self.caller(first), self.expected()
        await caller.connect()
        await caller.say("hello")
        expected.say("hello")
        return caller, expected

    # ------------------------------------------------------------ its processes

    async def add_engine(self) -> None:
        self._engine_ports.append(free_port())
        self.engines.append(await self._engine(self._engine_ports[-1]))

    async def add_gateway(self, **env: str) -> None:
        self.gateway_ports.append(free_port())
        self.gateways.append(await self._gateway(self.gateway_ports[-1], env))

    async def engine_again(self, n: int) -> None:
        """In place of one that is gone."""
        self.engines[n].stop()
        self.engines[n] = await self._engine(self._engine_ports[n])

    async def gateway_again(self, n: int, **env: str) -> None:
        self.gateways[n].stop()
        self.gateways[n] = await self._gateway(self.gateway_ports[n], env)

    async def _engine(self, port: int) -> Process:
        options = ("--listen", f"127.0.0.1:{port}", "--model", str(self._words))
        return await _started(Process("engine", *options, module=HOST), address_of)

    async def _gateway(self, port: int, env: dict[str, str]) -> Process:
        engines = [f"--engine=127.0.0.1:{engine}" for engine in self._engine_ports]
        options = ("--port", str(port), "--no-web", "--store", self.redis.url, *engines)
        process = Process("gateway", *options, *self._options, env={"CONTINUO_API_KEY": KEY, **env})
        return await _started(process, url_of)

    async def ready(self) -> None:
        for url in self.urls:
            await until_ready(url)

    # ------------------------------------------------------------ its books

    async def stats(self, gateway: int = 0) -> dict[str, Any]:
        """What this gateway says of all its engines together."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway_ports[gateway]}/v1/stats",
            headers={"Authorization": f"Bearer {KEY}"},
        )
        ask = functools.partial(urllib.request.urlopen, request, timeout=10)
        with await asyncio.to_thread(ask) as answer:
            return json.loads(answer.read())

    async def balanced(self) -> None:
        """Every session is closed, and no page is held; nothing went wrong on the way."""
        async with asyncio.timeout(BOOKS_S):
            while True:
                books = (await self.stats())["engine"]
                if books is not None and books["sessions"] == books["pages_leased"] == 0:
                    break
                await asyncio.sleep(0.05)
        assert books["pages_free"] + books["pages_tree"] == books["pages_total"]
        assert books["failed_steps"] == books["failed_audits"] == 0

    def stop(self) -> None:
        for process in (*self.gateways, *self.engines):
            process.stop()


async def _started(process: Process, said: Any) -> Process:
    try:
        await asyncio.to_thread(said, process)
    except BaseException:
        process.stop()
        raise
    process.read_on()
    return process


@contextlib.asynccontextmanager
async def town(
    folder: Path, *options: str, engines: int = 1, gateways: int = 1
) -> AsyncIterator[Town]:
    redis = RedisProcess(folder / "redis", "--appendonly", "yes", "--appendfsync", "everysec")
    await redis.start()
    made = Town(folder, redis, *options)
    try:
        for _ in range(engines):
            await made.add_engine()
        for _ in range(gateways):
            await made.add_gateway()
        await made.ready()
        yield made
    finally:
        made.stop()
        redis.kill()


async def goes_on(caller: Caller, expected: Expected) -> None:
    """The conversation is what it should be, and ends."""
    await caller.say("go on")
    expected.say("go on")
    assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.leave()

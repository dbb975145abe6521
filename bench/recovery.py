"""How long it takes until all is well again, with the bundled model; each `--times` times.

engine kill     the engine's process is killed in the middle of an answer: until the next token. It
                loads its model again, and reads the conversation again
gateway kill    the gateway is killed in the middle of an answer: until its client has come back to
                another one. In the end the answer is what it is without a fault
Redis restart   Redis is killed and started again: from its first answer until an append is taken

And, to compare the first with, how long each start of an engine took.

Clients try again every 20 ms. All of it is on one machine.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import uvloop
from websockets.exceptions import WebSocketException

from continuo.bench.processes import Process, RedisProcess, continuo
from continuo.bench.realtime_client import Client
from continuo.bench.report import Report, Row, median

STORY = "Tell me a short story."
LONG = {"max_output_tokens": 300, "ignore_eos": True}
BEFORE = 20
"""Deltas heard before the fault."""
TRY_S = 0.02
DOWN_S = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--times", type=int, default=10, metavar="N", help="each fault (default 10)"
    )
    faults = ", ".join(FAULTS)
    parser.add_argument(
        "--faults", nargs="*", choices=FAULTS, default=[*FAULTS], help=f"of {faults}", metavar="F"
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.times, options.faults))


class Stack:
    """An engine, gateways, and a Redis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.redis = RedisProcess(folder)
        self._engine: Process
        self.started_s = 0.0
        """From the start of the engine until gateways are taken."""
        self.load_s = 0.0
        """Of that, what it says it needed for its model; its imports come before."""
        self._gateways: dict[str, Process] = {}

    async def start(self) -> None:
        await self.redis.start()
        store = ("--store", self.redis.url)
        began_s = time.monotonic()
        self._engine = continuo(self._folder, "engine", "--listen", "127.0.0.1:0", *store)
        self.address = await self._engine.said(r"Gateways +(\S+)")
        self.started_s = time.monotonic() - began_s
        self.load_s = float(await self._engine.said(r"Ready after ([\d.]+) s"))

    async def gateway(self) -> str:
        """A new one; its URL."""
        options = ("--port", "0", "--no-web", "--store", self.redis.url, "--engine", self.address)
        process = continuo(self._folder, "gateway", *options)
        url = await process.said(r"Listening on +(\S+)")
        self._gateways[url] = process
        return url

    def kill_gateway(self, url: str) -> None:
        self._gateways.pop(url).kill()

    def kill_engine(self) -> None:
        """The process with the model; its parent starts another one."""
        (child,) = self._engine.children()
        os.kill(child, signal.SIGKILL)

    def stop(self) -> None:
        for process in (*self._gateways.values(), self._engine):
            process.stop()
        self.redis.kill()


@contextlib.asynccontextmanager
async def _stack() -> AsyncIterator[Stack]:
    folder = Path(tempfile.mkdtemp())
    stack = Stack(folder)
    try:
        await stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder)


async def engine_kill(stack: Stack, times: int) -> list[float]:
    client = await _asker(await stack.gateway())
    whole = await _whole(client)
    spent: list[float] = []
    for _ in range(times):
        await _begin(client)
        stack.kill_engine()
        killed_s = time.monotonic()
        heard_s = [killed_s]
        while (await client.hear())["type"] != "response.done":
            heard_s.append(time.monotonic())
        # what was on its way still comes; then there is silence until the next token
        _, next_s = max(pairwise(heard_s), key=lambda pair: pair[1] - pair[0])
        spent.append(next_s - killed_s)
        _same(client.text, whole)
    return spent


async def gateway_kill(stack: Stack, times: int) -> list[float]:
    here, there = await stack.gateway(), await stack.gateway()
    spent: list[float] = []
    for _ in range(times):
        client = await _asker(here)
        whole = await _whole(client)
        await _begin(client, conversation="auto")
        stack.kill_gateway(here)
        killed_s = time.monotonic()
        await client.drop()
        await _until_taken(lambda client=client, there=there: client.come_back(there))
        spent.append(time.monotonic() - killed_s)
        await client.until("response.done")
        _same(client.text, whole)
        await client.drop()
        here, there = there, await stack.gateway()
    return spent


async def redis_restart(stack: Stack, times: int) -> list[float]:
    client = await _asker(await stack.gateway())
    spent: list[float] = []
    for _ in range(times):
        stack.redis.kill()
        await asyncio.sleep(DOWN_S)
        await stack.redis.start()
        back_s = time.monotonic()
        await _until_taken(lambda: client.say("Are you there?"))
        spent.append(time.monotonic() - back_s)
    return spent


FAULTS = {
    "engine-kill": ("engine killed, until the next token", engine_kill),
    "gateway-kill": ("gateway killed, until resumed on another", gateway_kill),
    "redis-restart": ("Redis answers again, until an append is taken", redis_restart),
}


async def _run(times: int, faults: list[str]) -> Report:
    rows: list[Row] = []
    started_s: list[float] = []
    load_s: list[float] = []
    for fault in faults:
        what, measure = FAULTS[fault]
        async with _stack() as stack:
            spent = await measure(stack, times)
            started_s.append(stack.started_s)
            load_s.append(stack.load_s)
        row = {"what": what, "times": times, "median_s": median(spent), "worst_s": max(spent)}
        rows.append(row)
    starts = {
        "engine started, until it takes gateways": started_s,
        "of that, its model loaded, as it says": load_s,
    }
    rows += [
        {"what": what, "times": len(took), "median_s": median(took), "worst_s": max(took)}
        for what, took in starts.items()
    ]
    return Report("Recovery, seconds", rows)


# ---------------------------------------------------------------- the client


async def _asker(url: str) -> Client:
    client = await Client.connect(url)
    await client.say(STORY)
    return client


async def _whole(client: Client) -> str:
    """The answer without a fault."""
    await client.ask(conversation="none", **LONG)
    await client.until("response.done")
    return client.text


async def _begin(client: Client, conversation: str = "none") -> None:
    await client.ask(conversation=conversation, **LONG)
    for _ in range(BEFORE):
        await client.until("response.output_text.delta")


async def _until_taken(act: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await act()
            return
        except (OSError, WebSocketException, RuntimeError):
            await asyncio.sleep(TRY_S)


def _same(text: str, whole: str) -> None:
    if text != whole:
        raise RuntimeError(f"the answer is not the one without a fault:\n{text}\n{whole}")

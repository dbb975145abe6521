"""Seconds to recovery after a fault, with the bundled model; `--times` repetitions of each fault.

engine-kill     The engine process is killed during a response. Measured from the kill until the
                next token: the engine loads its model and prefills the conversation again.
engine-kill-standby
                The same, with `--standby-engine`, once the standby has imported its modules.
gateway-kill    The gateway is killed during a response. Measured from the kill until the client has
                resumed on another gateway.
redis-restart   Redis is killed and restarted. Measured from its first reply until a gateway accepts
                an append.

After engine-kill and gateway-kill, the text of the response must equal that without a fault. The
startup time of each engine is reported for comparison with engine-kill. Clients retry every 20 ms.
Everything runs on one machine.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path

import uvloop
from websockets.exceptions import WebSocketException

from continuo.bench.processes import Process, RedisProcess, start_continuo
from continuo.bench.realtime_client import RealtimeClient
from continuo.bench.report import Report, ReportRow, median
from continuo.engine.client.engine_process import STANDBY_DELAY_S

STORY = "Tell me a short story."
LONG_RESPONSE = {"max_output_tokens": 300, "ignore_eos": True}
DELTAS_BEFORE_FAULT = 20
"""Number of text deltas that the client receives before the fault."""
RETRY_S = 0.02
DOWNTIME_S = 1.0
STANDBY_IMPORTS_S = 5.0
"""Seconds that a standby has for its imports."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        metavar="N",
        help="repetitions of each fault (default: %(default)s)",
    )
    faults = ", ".join(FAULTS)
    parser.add_argument(
        "--faults",
        nargs="*",
        choices=FAULTS,
        default=[*FAULTS],
        help=f"some of {faults} (default: all)",
        metavar="F",
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.times, options.faults))


class Stack:
    """The processes under test: an engine, gateways and a Redis server."""

    def __init__(self, folder: Path, engine_options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._engine_options = engine_options
        self.redis = RedisProcess(folder)
        self._engine: Process
        self.startup_s = 0.0
        """Seconds from the start of the engine until it accepts gateways."""
        self.load_s = 0.0
        """Seconds that the engine reports for loading its model, a part of `startup_s`; Python
        imports are not included."""
        self._gateways: dict[str, Process] = {}

    async def start(self) -> None:
        await self.redis.start()
        store = ("--store", self.redis.url)
        start_s = time.monotonic()
        options = ("--listen", "127.0.0.1:0", *store, *self._engine_options)
        self._engine = start_continuo(self._folder, "engine", *options)
        self.address = await self._engine.wait_for_output(r"Gateways +(\S+)")
        self.startup_s = time.monotonic() - start_s
        self.load_s = float(await self._engine.wait_for_output(r"Ready after ([\d.]+) s"))

    async def start_gateway(self) -> str:
        """Start a gateway. Returns its URL."""
        options = ("--port", "0", "--no-web", "--store", self.redis.url, "--engine", self.address)
        process = start_continuo(self._folder, "gateway", *options)
        url = await process.wait_for_output(r"Listening on +(\S+)")
        self._gateways[url] = process
        return url

    def kill_gateway(self, url: str) -> None:
        self._gateways.pop(url).kill()

    def kill_engine(self) -> None:
        """Kill the engine process; its parent, `continuo engine`, restarts it."""
        engine, *_standby = sorted(self._engine.children())
        os.kill(engine, signal.SIGKILL)

    def stop(self) -> None:
        for process in (*self._gateways.values(), self._engine):
            process.stop()
        self.redis.kill()


@contextlib.asynccontextmanager
async def _run_stack(engine_options: Sequence[str]) -> AsyncIterator[Stack]:
    folder = Path(tempfile.mkdtemp())
    stack = Stack(folder, engine_options)
    try:
        await stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder)


async def measure_engine_kill(stack: Stack, times: int) -> list[float]:
    client = await _connect_with_question(await stack.start_gateway())
    expected = await _get_undisturbed_text(client)
    spent: list[float] = []
    for _ in range(times):
        await _begin_response(client)
        stack.kill_engine()
        killed_s = time.monotonic()
        received_s = [killed_s]
        while (await client.receive())["type"] != "response.done":
            received_s.append(time.monotonic())
        # Events in flight arrive after the kill; the longest gap between events ends with the next
        # token of the restarted engine.
        _, next_s = max(pairwise(received_s), key=lambda pair: pair[1] - pair[0])
        spent.append(next_s - killed_s)
        _check_same_text(client.response_text, expected)
    return spent


async def measure_engine_kill_with_standby(stack: Stack, times: int) -> list[float]:
    spent: list[float] = []
    for _ in range(times):
        await asyncio.sleep(STANDBY_DELAY_S + STANDBY_IMPORTS_S)
        spent += await measure_engine_kill(stack, 1)
    return spent


async def measure_gateway_kill(stack: Stack, times: int) -> list[float]:
    here, there = await stack.start_gateway(), await stack.start_gateway()
    spent: list[float] = []
    for _ in range(times):
        client = await _connect_with_question(here)
        expected = await _get_undisturbed_text(client)
        await _begin_response(client, conversation="auto")
        stack.kill_gateway(here)
        killed_s = time.monotonic()
        await client.abort()
        await _retry_until_accepted(lambda client=client, there=there: client.resume(there))
        spent.append(time.monotonic() - killed_s)
        await client.receive_until("response.done")
        _check_same_text(client.response_text, expected)
        await client.abort()
        here, there = there, await stack.start_gateway()
    return spent


async def measure_redis_restart(stack: Stack, times: int) -> list[float]:
    client = await _connect_with_question(await stack.start_gateway())
    spent: list[float] = []
    for _ in range(times):
        stack.redis.kill()
        await asyncio.sleep(DOWNTIME_S)
        await stack.redis.start()
        restarted_s = time.monotonic()
        await _retry_until_accepted(lambda: client.add_message("Are you there?"))
        spent.append(time.monotonic() - restarted_s)
    return spent


FAULTS = {
    "engine-kill": ("engine killed, until the next token", measure_engine_kill, ()),
    "engine-kill-standby": (
        "engine killed, until the next token, with a standby",
        measure_engine_kill_with_standby,
        ("--standby-engine",),
    ),
    "gateway-kill": ("gateway killed, until resumed on another", measure_gateway_kill, ()),
    "redis-restart": ("Redis restarted, until an append is accepted", measure_redis_restart, ()),
}


async def _run(times: int, faults: list[str]) -> Report:
    rows: list[ReportRow] = []
    startup_s: list[float] = []
    load_s: list[float] = []
    for fault in faults:
        what, measure, engine_options = FAULTS[fault]
        async with _run_stack(engine_options) as stack:
            spent = await measure(stack, times)
            startup_s.append(stack.startup_s)
            load_s.append(stack.load_s)
        row = {"what": what, "times": times, "median_s": median(spent), "worst_s": max(spent)}
        rows.append(row)
    starts = {
        "engine started, until it accepts gateways": startup_s,
        "of that, loading the model (reported)": load_s,
    }
    rows += [
        {"what": what, "times": len(spent), "median_s": median(spent), "worst_s": max(spent)}
        for what, spent in starts.items()
    ]
    return Report("Recovery, seconds", rows)


# ---------------------------------------------------------------- the client


async def _connect_with_question(url: str) -> RealtimeClient:
    client = await RealtimeClient.connect(url)
    await client.add_message(STORY)
    return client


async def _get_undisturbed_text(client: RealtimeClient) -> str:
    """Return the text of the response to the conversation so far, generated without a fault."""
    await client.create_response(conversation="none", **LONG_RESPONSE)
    await client.receive_until("response.done")
    return client.response_text


async def _begin_response(client: RealtimeClient, conversation: str = "none") -> None:
    await client.create_response(conversation=conversation, **LONG_RESPONSE)
    for _ in range(DELTAS_BEFORE_FAULT):
        await client.receive_until("response.output_text.delta")


async def _retry_until_accepted(request: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await request()
            return
        except (OSError, WebSocketException, RuntimeError):
            await asyncio.sleep(RETRY_S)


def _check_same_text(text: str, expected: str) -> None:
    if text != expected:
        raise RuntimeError(f"the response differs from that without a fault:\n{text}\n{expected}")

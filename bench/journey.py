"""How far an append and a response travel: the files of this package that each enters.

One client adds a message to its conversation, then has a response created. The gateway, the engine
on the scripted device and the store, a SQLite file in memory, are all in this process, where
`sys.setprofile` sees each call in each thread. A journey lasts until nothing is called any more. It
is made ROUNDS times after a first one, which prepares what the others find. Counted are the files
that each round enters, so that a timer which is due meanwhile is not.
"""

import argparse
import asyncio
import functools
import io
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop

from continuo import engine, realtime
from continuo.bench import random_checkpoints, scripted_engine
from continuo.bench.gateway_server import serving
from continuo.bench.raw_websocket_clients import EventWaiter, WebSocketClient
from continuo.bench.report import Report, ReportRow
from continuo.engine.client.engine_client import EngineClient
from continuo.realtime.store import open_store

PACKAGES = {
    package.__name__.rpartition(".")[2]: Path(str(package.__file__)).parent
    for package in (engine, realtime)
}
TOKENS = 8
"""Output tokens of the response."""
ROUNDS = 3
QUIET_S = 0.05
"""A journey is over once nothing has been called for this time."""
QUIET_AFTER_S = 2.0
"""A journey that is not over after this time is cut."""

Journey = dict[str, Counter[str]]
"""The calls of each function, by the path of its file."""


class CallTrace:
    """The calls of functions of this package, in all threads while it records. Threads that were
    running before are not seen."""

    def __init__(self) -> None:
        self.calls = Counter[CodeType]()
        self._is_recording = False
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of a block, and those alone."""
        self.calls.clear()
        self._is_recording = True
        yield
        self._is_recording = False

    def _on_event(self, frame: FrameType, event: str, _value: Any) -> None:
        if event == "call" and self._is_recording and _path_of(frame.f_code.co_filename):
            self.calls[frame.f_code] += 1

    def functions_by_file(self) -> Journey:
        found: Journey = {}
        for code, count in self.calls.items():
            found.setdefault(_path_of(code.co_filename), Counter())[code.co_qualname] += count
        return found


@functools.cache
def _path_of(file: str) -> str:
    """Return the path of a file in this package; "" if it is in neither engine nor realtime."""
    for package, folder in PACKAGES.items():
        if Path(file).is_relative_to(folder):
            return f"{package}/{Path(file).relative_to(folder)}"
    return ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", action="store_true", help="list the files of each journey")


def run(options: argparse.Namespace) -> Report:
    trace = CallTrace()
    try:
        journeys = uvloop.run(_travel(trace))
    finally:
        trace.stop()
    tables = {
        f"Files of {name}": [
            {"file": file, "functions": len(functions), "calls": functions.total()}
            for file, functions in sorted(journey.items())
        ]
        for name, journey in journeys.items()
        if options.files
    }
    rows = [_summarize(name, journey) for name, journey in journeys.items()]
    return Report("Files that one request enters", rows, tables)


def _summarize(name: str, journey: Journey) -> ReportRow:
    functions = sum(map(len, journey.values()))
    return {
        "journey": name,
        "files": len(journey),
        "of_engine": sum(file.startswith("engine/") for file in journey),
        "for_one_function": sum(len(found) == 1 for found in journey.values()),
        "functions": functions,
        "functions_per_file": functions / len(journey),
        "calls": sum(found.total() for found in journey.values()),
    }


async def _travel(trace: CallTrace) -> dict[str, Journey]:
    folder = random_checkpoints.ensure_checkpoint("S")
    engines: list[asyncio.Task[None]] = []

    async def launch() -> socket.socket:
        ours, theirs = socket.socketpair()
        run = scripted_engine.serve("ticks", theirs.detach(), str(folder), 0, io.StringIO())
        engines.append(asyncio.create_task(run))
        return ours

    client = EngineClient(launch)
    await client.connect()
    async with serving(client, await open_store("sqlite:///:memory:")) as port:
        waiter = EventWaiter()
        caller = await WebSocketClient.connect(port, waiter)
        rounds = [await _travel_once(trace, caller, waiter) for _ in range(1 + ROUNDS)]
        caller.close()
    await client.stop()
    await asyncio.gather(*engines)
    return {name: _in_each([made[name] for made in rounds[1:]]) for name in rounds[0]}


async def _travel_once(
    trace: CallTrace, caller: WebSocketClient, waiter: EventWaiter
) -> dict[str, Journey]:
    content = [{"type": "input_text", "text": "one more"}]
    item = {"type": "message", "role": "user", "content": content}
    requests: dict[str, tuple[dict[str, Any], str]] = {
        "append": ({"type": "conversation.item.create", "item": item}, "conversation.item.done"),
        "response": (
            {"type": "response.create", "response": {"max_output_tokens": TOKENS}},
            "response.done",
        ),
    }
    journeys: dict[str, Journey] = {}
    for name, (request, last) in requests.items():
        with trace.recording():
            caller.send(**request)
            await waiter.wait_for(last)
            await _wait_until_quiet(trace)
        journeys[name] = trace.functions_by_file()
    return journeys


async def _wait_until_quiet(trace: CallTrace) -> None:
    """Wait until the engine and the store have done what the reply did not wait for."""
    seen, deadline_s = -1, time.monotonic() + QUIET_AFTER_S
    while (now := trace.calls.total()) != seen and time.monotonic() < deadline_s:
        seen = now
        await asyncio.sleep(QUIET_S)


def _in_each(journeys: Sequence[Journey]) -> Journey:
    """Return the files that each of these journeys enters, with the calls of the last."""
    files = set.intersection(*(set(journey) for journey in journeys))
    return {file: found for file, found in journeys[-1].items() if file in files}

"""`continuo serve` under measurement, and clients of its Realtime API."""

import asyncio
import contextlib
import json
import re
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets

from continuo.bench.turn_stats import TurnTimings

WORDS = "the quick brown fox jumps over the lazy dog and "
SAMPLING = {"temperature": 0, "max_output_tokens": 8, "ignore_eos": True}


@contextlib.asynccontextmanager
async def run_server(folder: Path | str, *options: str, **config: Any) -> AsyncIterator[str]:
    """Run a server on a free port of the loopback interface. Yields its WebSocket URL.

    `config`: options by name, with underscores; `options`: further arguments of the command line.
    """
    flags = [
        part
        for name, value in config.items()
        for part in ("--" + name.replace("_", "-"), str(value))
    ]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "continuo.realtime.server.cli", "serve", "--port", "0"),
        *("--model", str(folder), *flags, *options),
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        url = ""
        async for line in server.stdout:
            if found := re.search(r"ws://\S+/v1/realtime", line.decode()):
                url = found[0]
                break
        assert url, "the server did not start"
        draining = asyncio.create_task(server.stdout.read())
        yield url
        server.terminate()
        await draining
    finally:
        if server.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
        await server.wait()


async def measure(url: str, mode: str, sessions: int, turns: int, scope: str) -> TurnTimings:
    """Run sessions concurrently. Returns the outputs of all turns and, for each turn but the first
    of a session, the wall time seen by the client and the idle time of the device.

    `mode`: "streaming" adds each turn to the conversation of the session; any other mode sends the
    whole history with each turn, as input of an out-of-band response. `scope`: the instructions of
    every session; different for each run, so that runs do not share KV.

    The idle time is elapsed time minus busy time of the device, which the first session reads from
    the engine's statistics before some of its turns. It is therefore known only as a mean over a
    range of turns. With more than 21 turns, three ranges have a mean each: turns 2 to 11, the last
    ten, and those in between; else all turns from the second on have one mean. The device time that
    a turn itself reports does not suffice, because the client's wall clock starts before the engine
    receives the request for the turn.
    """
    reading_turns = [1, *({11, turns - 10} if turns > 21 else ()), turns]
    runs = await asyncio.gather(
        *(
            _run_session(url, mode, n, turns, scope, () if n else reading_turns)
            for n in range(sessions)
        )
    )
    readings = runs[0].readings
    idle = [
        (later.at_s - readings[n].at_s - (later.device_busy_s - readings[n].device_busy_s))
        / (reading_turns[n + 1] - reading_turns[n])
        for n, later in enumerate(readings[1:])
    ]
    idle_by_turn = [
        s for n, s in enumerate(idle) for _ in range(reading_turns[n], reading_turns[n + 1])
    ]
    return TurnTimings(
        [run.wall_s[1:] for run in runs], [idle_by_turn], [run.outputs for run in runs]
    )


@dataclass
class _DeviceReading:
    at_s: float
    device_busy_s: float
    """Time in which the device was busy since the engine started."""


@dataclass
class _SessionRun:
    wall_s: list[float] = field(default_factory=list[float])
    outputs: list[str] = field(default_factory=list[str])
    readings: list[_DeviceReading] = field(default_factory=list[_DeviceReading])


async def _read_device(url: str) -> _DeviceReading:
    http = url.replace("ws://", "http://").replace("/realtime", "/stats")

    def read() -> float:
        with urllib.request.urlopen(http, timeout=30) as response:
            return json.load(response)["engine"]["model_s"]

    device_busy_s = await asyncio.to_thread(read)
    return _DeviceReading(time.perf_counter(), device_busy_s)


async def _run_session(
    url: str, mode: str, number: int, turns: int, scope: str, reading_turns: Collection[int]
) -> _SessionRun:
    """Run session number `number`. `mode`, `scope`: as in `measure`. Reads the device's busy time
    before each turn whose index, from 0, is in `reading_turns`, and after the last turn if
    `reading_turns` contains `turns`."""
    run = _SessionRun()
    history: list[dict[str, Any]] = []
    async with websockets.connect(url, max_size=None, compression=None) as socket:
        await _receive_until(socket, "session.created")
        session = {
            "type": "realtime",
            "output_modalities": ["text"],
            "instructions": scope,
            **SAMPLING,
        }
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await _receive_until(socket, "session.updated")
        for turn in range(turns):
            if turn in reading_turns:
                run.readings.append(await _read_device(url))
            start = (number * 7 + turn * 3) % len(WORDS)
            item = _message("user", (WORDS + WORDS)[start : start + 13])
            start_s = time.perf_counter()
            if mode == "streaming":
                await _send(socket, {"type": "conversation.item.create", "item": item})
                await _send(socket, {"type": "response.create"})
            else:
                history.append(item)
                response = {"conversation": "none", "input": history}
                await _send(socket, {"type": "response.create", "response": response})
            done = (await _receive_until(socket, "response.done"))["response"]
            run.wall_s.append(time.perf_counter() - start_s)
            text = "".join(p["text"] for x in done["output"] for p in x["content"])
            history.append(_message("assistant", text))
            run.outputs.append(text)
        if turns in reading_turns:
            run.readings.append(await _read_device(url))
    return run


def _message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


async def _send(socket: websockets.ClientConnection, event: dict[str, Any]) -> None:
    await socket.send(json.dumps(event))


async def _receive_until(socket: websockets.ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        event = json.loads(await socket.recv())
        if event["type"] == kind:
            return event
        if event["type"] == "error":
            raise RuntimeError(event["error"]["message"])

"""`continuo serve` under measurement, and Realtime clients that load it."""

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
    """A server on a free port of the loopback; yields its WebSocket address."""
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
    """How long each turn took; and how long the device did nothing in a turn of the first session,
    as the mean over turns 2 to 11, over the last ten, and over those between. A turn says itself
    how long the device worked since it was asked for, but a client has waited before. `scope`, with
    which every conversation begins, keeps runs from sharing KV."""
    looks = [1, *({11, turns - 10} if turns > 21 else ()), turns]
    lives = await asyncio.gather(
        *(_run_session(url, mode, n, turns, scope, () if n else looks) for n in range(sessions))
    )
    seen = lives[0].readings
    idle = [
        (later.at_s - seen[n].at_s - (later.device_busy_s - seen[n].device_busy_s))
        / (looks[n + 1] - looks[n])
        for n, later in enumerate(seen[1:])
    ]
    spread = [s for n, s in enumerate(idle) for _ in range(looks[n], looks[n + 1])]
    return TurnTimings(
        [life.wall_s[1:] for life in lives], [spread], [life.outputs for life in lives]
    )


@dataclass
class _DeviceReading:
    at_s: float
    device_busy_s: float
    """Of the device, since it was started."""


@dataclass
class _SessionRun:
    wall_s: list[float] = field(default_factory=list[float])
    outputs: list[str] = field(default_factory=list[str])
    readings: list[_DeviceReading] = field(default_factory=list[_DeviceReading])


async def _read_device(url: str) -> _DeviceReading:
    http = url.replace("ws://", "http://").replace("/realtime", "/stats")

    def read() -> float:
        with urllib.request.urlopen(http, timeout=30) as answer:
            return json.load(answer)["engine"]["model_s"]

    worked_s = await asyncio.to_thread(read)
    return _DeviceReading(time.perf_counter(), worked_s)


async def _run_session(
    url: str, mode: str, number: int, turns: int, scope: str, reading_turns: Collection[int]
) -> _SessionRun:
    """Looks at what the device has done before these turns; `turns`: after the last."""
    life = _SessionRun()
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
                life.readings.append(await _read_device(url))
            start = (number * 7 + turn * 3) % len(WORDS)
            item = _message("user", (WORDS + WORDS)[start : start + 13])
            began = time.perf_counter()
            if mode == "streaming":
                await _send(socket, {"type": "conversation.item.create", "item": item})
                await _send(socket, {"type": "response.create"})
            else:
                history.append(item)
                response = {"conversation": "none", "input": history}
                await _send(socket, {"type": "response.create", "response": response})
            done = (await _receive_until(socket, "response.done"))["response"]
            life.wall_s.append(time.perf_counter() - began)
            text = "".join(p["text"] for x in done["output"] for p in x["content"])
            history.append(_message("assistant", text))
            life.outputs.append(text)
        if turns in reading_turns:
            life.readings.append(await _read_device(url))
    return life


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

"""The gateway alone: a scripted engine behind it, clients before it, on one machine.

streams     N answers at once, 50 tokens a second each: how late each token reaches its client,
            counted from the beat of the device; then, while others take short turns beside them,
            what lies around the engine when one starts: response.create to the engine, and the
            first token back
append      words appended to the text buffer, and items: how long until they are acknowledged
idle        connections held open: how fast they open, bytes each, processor time meanwhile

All of it includes the link to the engine, and the client, on the same machine; where it has several
cores the gateway's event loop has the first, and all else the others.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from continuo.bench import random_checkpoints
from continuo.bench.raw_websocket_clients import EventWaiter, LatenessRecorder, WebSocketClient
from continuo.bench.report import Report, ReportRow, median, percentile

TOKENS_PER_S = 50.0
PROBES = 2
"""Others that take short turns beside the streams."""
APPEND_SESSIONS = 8
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="*", default=[200, 400], metavar="N")
    parser.add_argument("--idle", type=int, default=10_000, metavar="N", help="connections")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")


def run(options: argparse.Namespace) -> Report:
    gc.disable()  # of the clients, whose pauses would be taken for the gateway's
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder, seconds = random_checkpoints.ensure_checkpoint("S"), options.seconds
    rows: list[ReportRow] = []
    for count in options.streams:
        async with run_gateway(folder, TOKENS_PER_S) as gateway:
            rows += await measure_streams(gateway, count, seconds)
    async with run_gateway(folder, 0) as gateway:
        rows += await measure_appends(gateway, seconds)
    if options.idle:
        async with run_gateway(folder, 0) as gateway:
            rows += await measure_idle(gateway, options.idle, seconds)
    return Report("The gateway before a scripted engine", rows, notes=["Milliseconds."])


# ---------------------------------------------------------------- the server


class GatewayProcess(NamedTuple):
    port: int
    pid: int
    trace_file: Path

    def cpu_s(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S

    def read_trace(self) -> dict[tuple[str, str], float]:
        """When the engine was `asked` for each turn and has `answered`, by the response's id."""
        lines = map(str.split, self.trace_file.read_text().splitlines())
        return {(what, name): float(at) for what, name, at in lines}

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextlib.asynccontextmanager
async def run_gateway(
    folder: Path, rate: float, store: str | None = None, durability: str = "normal"
) -> AsyncIterator[GatewayProcess]:
    """`store`: None for a file on disk. Where there are several cores the first is its event loop's
    alone from now on: a system that packs what runs on few cores lets the loop wait for the next
    tick, milliseconds away, while another core is idle."""
    os.sched_setaffinity(0, CORES[1:] or CORES)
    file = Path(tempfile.mkdtemp()) / "told"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "continuo.bench.gateway_server", str(folder), str(rate), str(file)),
        *(store or f"sqlite:///{file.parent}/store.db", durability, str(CORES[0])),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        assert line, "the gateway did not start"
        port, pid = map(int, line.split())
        yield GatewayProcess(port, pid, file)
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(file.parent)


# ---------------------------------------------------------------- what is measured


async def measure_streams(gateway: GatewayProcess, count: int, seconds: float) -> list[ReportRow]:
    """`count` long answers, alone at first; then beside turns of a few tokens."""
    tokens = int(TOKENS_PER_S * seconds * 2)
    listeners = [LatenessRecorder(TOKENS_PER_S) for _ in range(count)]
    wires = [await WebSocketClient.connect(gateway.port, listener) for listener in listeners]
    for number, wire in enumerate(wires):
        _add_message(wire, f"stream {number}")
        _create_response(wire, tokens)
        await asyncio.sleep(0.5 / count)
    alone, used_alone = await _measure_while(gateway, listeners, asyncio.sleep(seconds))
    probing = asyncio.gather(*(_probe(gateway.port, seconds * 0.8) for _ in range(PROBES)))
    beside, used_beside = await _measure_while(gateway, listeners, probing)
    turns = [turn for waited in await probing for turn in waited]
    await asyncio.gather(*(listener.done for listener in listeners))
    for wire in wires:
        wire.close()
    told_s = gateway.read_trace()
    waits = [
        told_s["asked", turn] - asked_s + first_s - told_s["answered", turn]
        for turn, asked_s, first_s in turns
    ]
    said = sum(len(listener.lateness_s) for listener in listeners)
    what = f"{count} streams of {TOKENS_PER_S:.0f} tokens/s"
    return [
        _row(f"{what}: token late", alone)
        | {"cpu_percent": used_alone * 100, "missing": count * tokens - said},
        _row(f"{what}: token late, with short turns beside", beside)
        | {"cpu_percent": used_beside * 100},
        _row(f"{what}: another's first token, on both ways", waits),
    ]


async def _measure_while(
    gateway: GatewayProcess, listeners: Sequence[LatenessRecorder], awaited: Awaitable[Any]
) -> tuple[list[float], float]:
    """How late the tokens were that came until then, and the gateway's part of a core."""
    before = [len(listener.lateness_s) for listener in listeners]
    began_s, cpu_s = time.monotonic(), gateway.cpu_s()
    await awaited
    used = (gateway.cpu_s() - cpu_s) / (time.monotonic() - began_s)
    came = zip(listeners, before, strict=True)
    return [late for listener, count in came for late in listener.lateness_s[count:]], used


class _FirstTokenWait(NamedTuple):
    """By the client's clock, which is the engine's too."""

    response_id: str
    requested_s: float
    first_token_s: float


async def _probe(port: int, seconds: float) -> list[_FirstTokenWait]:
    """Short turns, asked for when their question is in the engine."""
    asker, waited = EventWaiter(), list[_FirstTokenWait]()
    wire = await WebSocketClient.connect(port, asker)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        _add_message(wire, "and now?")
        await asker.wait_for("conversation.item.added")
        await asyncio.sleep(random.uniform(0.02, 0.06))
        asked_s = time.monotonic()
        _create_response(wire, 3)
        payload, first_s = await asker.wait_for("response.output_text.delta")
        turn = json.loads(payload)["response_id"]
        waited.append(_FirstTokenWait(turn, asked_s, first_s))
        await asker.wait_for("response.done")
    wire.close()
    return waited


async def measure_appends(gateway: GatewayProcess, seconds: float) -> list[ReportRow]:
    """8 sessions, words every 20 ms or so, a turn's worth at a time."""
    spent = await asyncio.gather(
        *(_run_appends(gateway.port, seconds) for _ in range(APPEND_SESSIONS))
    )
    words = [took for took, _ in spent for took in took]
    items = [took for _, took in spent for took in took]
    return [
        _row("input_text_buffer.append to .appended", words),
        _row("conversation.item.create to .added", items),
    ]


async def _run_appends(port: int, seconds: float) -> tuple[list[float], list[float]]:
    asker, words, items = EventWaiter(), list[float](), list[float]()
    wire = await WebSocketClient.connect(port, asker)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            await asyncio.sleep(random.uniform(0, 0.04))
            words.append(
                await _time_until(
                    asker,
                    "input_text_buffer.appended",
                    lambda: wire.send(type="input_text_buffer.append", text="word "),
                )
            )
        wire.send(type="input_text_buffer.clear")
        await asker.wait_for("input_text_buffer.cleared")
        items.append(
            await _time_until(
                asker, "conversation.item.added", lambda: _add_message(wire, "and now?")
            )
        )
    wire.close()
    return words, items


async def _time_until(asker: EventWaiter, kind: str, send: Any) -> float:
    began_s = time.monotonic()
    send()
    return (await asker.wait_for(kind))[1] - began_s


async def measure_idle(gateway: GatewayProcess, count: int, seconds: float) -> list[ReportRow]:
    """Connections that say nothing, pinged as ever."""
    at_once = asyncio.Semaphore(64)
    before_bytes = gateway.resident_bytes()

    async def open_one() -> WebSocketClient:
        async with at_once:
            return await WebSocketClient.connect(gateway.port, lambda payload, now: None)

    began_s = time.monotonic()
    wires = await asyncio.gather(*(open_one() for _ in range(count)))
    opened_s = time.monotonic() - began_s
    await asyncio.sleep(2)
    each = (gateway.resident_bytes() - before_bytes) / count
    cpu_s, began_s = gateway.cpu_s(), time.monotonic()
    await asyncio.sleep(max(seconds, 41))  # two pings and more
    used = (gateway.cpu_s() - cpu_s) / (time.monotonic() - began_s)
    for wire in wires:
        wire.close()
    return [
        {
            "what": f"{count} idle connections",
            "count": count,
            "kib_each": each / 1024,
            "opened_per_s": count / opened_s,
            "cpu_percent": used * 100,
        }
    ]


def _row(what: str, spent: Sequence[float]) -> dict[str, Any]:
    return {
        "what": what,
        "count": len(spent),
        "p50_ms": median(spent) * 1e3,
        "p99_ms": percentile(spent, 99) * 1e3,
        "max_ms": max(spent) * 1e3,
    }


def _add_message(wire: WebSocketClient, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    wire.send(type="conversation.item.create", item=item)


def _create_response(wire: WebSocketClient, tokens: int) -> None:
    response = {"max_output_tokens": tokens, "ignore_eos": True}
    wire.send(type="response.create", response=response)

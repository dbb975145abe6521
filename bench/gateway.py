"""The gateway alone, between a scripted engine and clients on the same machine.

streams   N concurrent responses at 50 tokens a second each. Measured: lateness of each token, from
          the device's tick until its client receives it; then the same while other clients take
          short turns, and the latency of these turns outside the engine: from response.create
          until the engine receives the turn, plus from the engine's first token until its client
          receives it.
append    Words are appended to the text buffer, and items to the conversation. Measured: time until
          each append is acknowledged.
frames    N connections that send 50 small audio frames a second each. Measured: time until a frame
          among them is answered, and the CPU time of each.
idle      Idle connections. Measured: connections opened a second, memory of each, CPU time.

All figures include the link to the engine, and the client. On a machine with several cores, the
gateway's event loop has the first core to itself.
"""

import argparse
import asyncio
import base64
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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from continuo.bench import random_checkpoints
from continuo.bench.raw_websocket_clients import (
    EventWaiter,
    LatenessRecorder,
    RequestFailed,
    WebSocketClient,
)
from continuo.bench.report import Report, ReportRow, median, percentile

TOKENS_PER_S = 50.0
PROBES = 2
"""Number of clients that take short turns while the responses of `streams` are generated."""
APPEND_SESSIONS = 8
FRAMES_PER_S = 50
"""Frames of 20 ms that a client sends while it listens."""
AUDIO_BYTES = 960
"""Size of such a frame at 24 kHz with 16 bits."""
ANSWERED_FRAMES = 25
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams",
        type=int,
        nargs="*",
        default=[200, 400],
        metavar="N",
        help="concurrent responses, one measurement for each N (default: 200 400)",
    )
    parser.add_argument(
        "--frames",
        type=int,
        nargs="*",
        default=[120, 200],
        metavar="N",
        help="connections that send small frames, one measurement for each N (default: 120 200)",
    )
    parser.add_argument(
        "--idle",
        type=int,
        default=10_000,
        metavar="N",
        help="idle connections (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time of a measurement (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Report:
    gc.disable()  # pauses of the clients would be attributed to the gateway
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
    for count in options.frames:
        async with run_gateway(folder, 0) as gateway:
            rows.append(await measure_frames(gateway, count, seconds))
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
        """Return the CPU time that the gateway has used since its start, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S

    def read_trace(self) -> dict[tuple[str, str], float]:
        """Return the times at which the engine received each turn ("requested") and sent its first
        id ("first_sent"), by (event, response id), in seconds of the monotonic clock."""
        lines = map(str.split, self.trace_file.read_text().splitlines())
        return {(event, turn): float(at_s) for event, turn, at_s in lines}

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextlib.asynccontextmanager
async def run_gateway(
    folder: Path, rate: float, store: str | None = None, durability: str = "normal"
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose scripted engine has `rate` ticks a second. `store`: a URL; None: a SQLite
    file on disk.

    On a machine with several cores, this process leaves the first core to the gateway's event loop
    and does not return to it. An operating system that packs threads on few cores may otherwise let
    the loop wait milliseconds for the next scheduler tick, while another core is idle.
    """
    os.sched_setaffinity(0, CORES[1:] or CORES)
    file = Path(tempfile.mkdtemp()) / "trace"
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


# ---------------------------------------------------------------- measurements


async def measure_streams(gateway: GatewayProcess, count: int, seconds: float) -> list[ReportRow]:
    """Measure `count` long responses for `seconds`, first alone, then while PROBES clients take
    short turns."""
    tokens = int(TOKENS_PER_S * seconds * 2)
    recorders = [LatenessRecorder(TOKENS_PER_S) for _ in range(count)]
    clients = [await WebSocketClient.connect(gateway.port, recorder) for recorder in recorders]
    for number, client in enumerate(clients):
        _add_message(client, f"stream {number}")
        _create_response(client, tokens)
        await asyncio.sleep(0.5 / count)
    alone, cpu_alone = await _measure_while(gateway, recorders, asyncio.sleep(seconds))
    probing = asyncio.gather(*(_probe(gateway.port, seconds * 0.8) for _ in range(PROBES)))
    beside, cpu_beside = await _measure_while(gateway, recorders, probing)
    turns = [turn for waits in await probing for turn in waits]
    await asyncio.gather(*(recorder.done for recorder in recorders))
    for client in clients:
        client.close()
    trace = gateway.read_trace()
    outside_engine_s = [
        trace["requested", turn] - requested_s + first_s - trace["first_sent", turn]
        for turn, requested_s, first_s in turns
    ]
    received = sum(len(recorder.lateness_s) for recorder in recorders)
    what = f"{count} streams of {TOKENS_PER_S:.0f} tokens/s"
    return [
        _row(f"{what}: lateness of tokens", alone)
        | {"cpu_percent": cpu_alone * 100, "missing": count * tokens - received},
        _row(f"{what}: lateness of tokens, beside short turns", beside)
        | {"cpu_percent": cpu_beside * 100},
        _row(f"{what}: first token of a short turn, outside the engine", outside_engine_s),
    ]


async def _measure_while(
    gateway: GatewayProcess, recorders: Sequence[LatenessRecorder], awaited: Awaitable[Any]
) -> tuple[list[float], float]:
    """Await `awaited`. Returns the lateness in seconds of the tokens that arrived meanwhile, and
    the share of one core that the gateway used (0 to 1)."""
    before = [len(recorder.lateness_s) for recorder in recorders]
    start_s, cpu_s = time.monotonic(), gateway.cpu_s()
    await awaited
    cpu_share = (gateway.cpu_s() - cpu_s) / (time.monotonic() - start_s)
    counted = zip(recorders, before, strict=True)
    lateness_s = [late for recorder, count in counted for late in recorder.lateness_s[count:]]
    return lateness_s, cpu_share


class _FirstTokenWait(NamedTuple):
    """When a short turn was requested by the client, and when its first token was received, in
    seconds of the monotonic clock. The engine, on the same machine, uses the same clock."""

    response_id: str
    requested_s: float
    first_token_s: float


async def _probe(port: int, seconds: float) -> list[_FirstTokenWait]:
    """Take short turns for `seconds`. Each is requested some time after its user message is
    acknowledged, so that the message is already in the engine."""
    events, waits = EventWaiter(), list[_FirstTokenWait]()
    client = await WebSocketClient.connect(port, events)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        _add_message(client, "and now?")
        await events.wait_for("conversation.item.added")
        await asyncio.sleep(random.uniform(0.02, 0.06))
        requested_s = time.monotonic()
        _create_response(client, 3)
        payload, first_s = await events.wait_for("response.output_text.delta")
        turn = json.loads(payload)["response_id"]
        waits.append(_FirstTokenWait(turn, requested_s, first_s))
        await events.wait_for("response.done")
    client.close()
    return waits


async def measure_appends(gateway: GatewayProcess, seconds: float) -> list[ReportRow]:
    """Measure the acknowledgements of 8 sessions, each of which appends a word every 20 ms or so,
    and an item every 20 words."""
    by_session = await asyncio.gather(
        *(_run_appends(gateway.port, seconds) for _ in range(APPEND_SESSIONS))
    )
    words = [latency_s for words, _ in by_session for latency_s in words]
    items = [latency_s for _, items in by_session for latency_s in items]
    return [
        _row("input_text_buffer.append to .appended", words),
        _row("conversation.item.create to .added", items),
    ]


async def _run_appends(port: int, seconds: float) -> tuple[list[float], list[float]]:
    events, words, items = EventWaiter(), list[float](), list[float]()
    client = await WebSocketClient.connect(port, events)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            await asyncio.sleep(random.uniform(0, 0.04))
            words.append(
                await _time_until(
                    events,
                    "input_text_buffer.appended",
                    lambda: client.send(type="input_text_buffer.append", text="word "),
                )
            )
        client.send(type="input_text_buffer.clear")
        await events.wait_for("input_text_buffer.cleared")
        items.append(
            await _time_until(
                events, "conversation.item.added", lambda: _add_message(client, "and now?")
            )
        )
    client.close()
    return words, items


async def _time_until(events: EventWaiter, kind: str, send: Callable[[], None]) -> float:
    """Returns the seconds from a request to its acknowledgement. A request that could not be stored
    is sent again, as clients do."""
    start_s = time.monotonic()
    while True:
        send()
        try:
            return (await events.wait_for(kind))[1] - start_s
        except RequestFailed as failed:
            if failed.code != "store_unavailable":
                raise


async def measure_frames(gateway: GatewayProcess, count: int, seconds: float) -> dict[str, Any]:
    """Measure `count` connections that send FRAMES_PER_S small frames a second each. As audio is
    not answered, every ANSWERED_FRAMES-th frame is followed by one that is, after those before
    it."""
    cpu_s = gateway.cpu_s()
    sent, answers_s = zip(
        *await asyncio.gather(*(_send_frames(gateway.port, seconds) for _ in range(count))),
        strict=True,
    )
    cpu_s = gateway.cpu_s() - cpu_s
    row = _row(
        f"{count} connections of {FRAMES_PER_S} small frames/s: time to an answer",
        [latency_s for each in answers_s for latency_s in each],
    )
    return row | {"frames": sum(sent), "cpu_us_each": cpu_s / sum(sent) * 1e6}


async def _send_frames(port: int, seconds: float) -> tuple[int, list[float]]:
    """Returns the number of frames sent, and the seconds until each of the answers."""
    sent_s, answers_s = list[float](), list[float]()

    def receive(payload: bytes, now_s: float) -> None:
        if payload.startswith(b'{"type":"input_audio_buffer.cleared"'):
            answers_s.append(now_s - sent_s[len(answers_s)])

    client = await WebSocketClient.connect(port, receive)
    audio = base64.b64encode(bytes(AUDIO_BYTES)).decode()
    due_s, frames = time.monotonic() + random.uniform(0, 0.5), 0
    end_s = due_s + seconds
    while due_s < end_s:
        await asyncio.sleep(due_s - time.monotonic())
        due_s += 1 / FRAMES_PER_S
        client.send(type="input_audio_buffer.append", audio=audio)
        frames += 1
        if frames % ANSWERED_FRAMES == 0:
            sent_s.append(time.monotonic())
            client.send(type="input_audio_buffer.clear")
    async with asyncio.timeout(60):
        while len(answers_s) < len(sent_s):
            await asyncio.sleep(0.01)
    client.close()
    return frames + len(sent_s), answers_s


async def measure_idle(gateway: GatewayProcess, count: int, seconds: float) -> list[ReportRow]:
    """Measure `count` connections whose clients send only pongs: connections opened a second,
    memory of each, and the gateway's CPU time."""
    open_limit = asyncio.Semaphore(64)
    before_bytes = gateway.resident_bytes()

    async def open_one() -> WebSocketClient:
        async with open_limit:
            return await WebSocketClient.connect(gateway.port, lambda _payload, _now: None)

    start_s = time.monotonic()
    clients = await asyncio.gather(*(open_one() for _ in range(count)))
    opening_s = time.monotonic() - start_s
    await asyncio.sleep(2)
    bytes_each = (gateway.resident_bytes() - before_bytes) / count
    cpu_s, start_s = gateway.cpu_s(), time.monotonic()
    await asyncio.sleep(max(seconds, 41))  # at least two pings
    cpu_share = (gateway.cpu_s() - cpu_s) / (time.monotonic() - start_s)
    for client in clients:
        client.close()
    return [
        {
            "what": f"{count} idle connections",
            "count": count,
            "kib_each": bytes_each / 1024,
            "opened_per_s": count / opening_s,
            "cpu_percent": cpu_share * 100,
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


def _add_message(client: WebSocketClient, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    client.send(type="conversation.item.create", item=item)


def _create_response(client: WebSocketClient, tokens: int) -> None:
    response = {"max_output_tokens": tokens, "ignore_eos": True}
    client.send(type="response.create", response=response)

"""A gateway is killed under many live sessions; all of them come back to another one.

Each session has asked one question. Those that were opened last are in the middle of its answer
when their gateway is killed (`in_an_answer` says how many); the others have heard it out, for
opening takes its time, and an answer ends after --tokens at --rate. Each client tries again at
once, and every 100 ms or so. How long until each has heard that it was resumed, and whether its
text is, to the letter, what the same question is answered on the other gateway, undisturbed. The
engine is scripted: each id it draws is a digest of all that was before it, so that anything lost,
doubled or mixed up changes the text. Redis, engine, gateways and clients share one machine.
"""

import argparse
import asyncio
import json
import random
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from continuo.bench import random_checkpoints
from continuo.bench.processes import Process, RedisProcess, start_continuo
from continuo.bench.raw_websocket_clients import WebSocketClient
from continuo.bench.report import Report, median, percentile

QUESTION_COUNT = 20
"""Different ones, each asked once more of the other gateway, as a witness."""
CONCURRENT_OPENS = 32
"""Clients that open at the same time."""
RETRY_S = 0.1
RESUME_S_MAX = 60.0
CONNECTION_ERRORS = (OSError, TimeoutError)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=2000, metavar="N")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="of each answer")
    parser.add_argument("--rate", type=float, default=1.0, help="tokens a second of each answer")


def run(options: argparse.Namespace) -> Report:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return uvloop.run(_run(options.sessions, options.tokens, options.rate))


async def _run(sessions: int, tokens: int, rate: float) -> Report:
    folder = Path(tempfile.mkdtemp())
    redis = RedisProcess(folder)
    started: list[Process] = []
    try:
        await redis.start()
        engine, address = _start_engine(folder, rate)
        started.append(engine)
        ports: list[int] = []
        for _ in range(2):
            gateway = _start_gateway(folder, redis, address)
            started.append(gateway)
            ports.append(int(await gateway.wait_for_output(r"Listening on +ws://[^:]+:(\d+)")))
        row = await _measure_storm(ports, started[1], sessions, tokens, rate)
    finally:
        for process in reversed(started):
            process.kill()
        redis.kill()
        shutil.rmtree(folder)
    return Report(f"{sessions} sessions lose their gateway", [row], notes=["Seconds."])


def _start_engine(folder: Path, rate: float) -> tuple[Process, str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.set_inheritable(True)
        words = (
            "context",
            str(sock.fileno()),
            str(random_checkpoints.ensure_checkpoint("S")),
            str(rate),
        )
        line = (
            sys.executable,
            "-m",
            "continuo.bench.scripted_engine",
            *words,
            str(folder / "asked"),
        )
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        return Process(folder, *line, pass_fds=(sock.fileno(),)), address


def _start_gateway(folder: Path, redis: RedisProcess, engine: str) -> Process:
    options = ("--port", "0", "--no-web", "--store", redis.url, "--engine", engine)
    return start_continuo(folder, "gateway", *options)


async def _measure_storm(
    ports: list[int], gateway: Process, sessions: int, tokens: int, rate: float
) -> dict[str, Any]:
    here, there = ports
    witnesses = [ResumingClient(number, tokens) for number in range(QUESTION_COUNT)]
    callers = [ResumingClient(number % QUESTION_COUNT, tokens) for number in range(sessions)]
    opening = asyncio.Semaphore(CONCURRENT_OPENS)
    await asyncio.gather(*(caller.open(there, opening) for caller in witnesses))
    await asyncio.gather(*(caller.open(here, opening) for caller in callers))
    await asyncio.sleep(2 / rate)
    live = sum(not caller.done.done() for caller in callers)
    resuming = [asyncio.create_task(caller.resume(there)) for caller in callers]
    gateway.kill()
    killed_s = time.monotonic()
    await asyncio.gather(*resuming)
    spent = [caller.resumed_s - killed_s for caller in callers if caller.resume_mode]
    async with asyncio.timeout(RESUME_S_MAX + 2 * tokens / rate):
        await asyncio.gather(*(caller.done for caller in (*witnesses, *callers)))
    whole = [caller.text for caller in witnesses]
    hows = Counter(caller.resume_mode for caller in callers)
    differ = sum(caller.text != whole[caller.question] for caller in callers)
    return {
        "sessions": sessions,
        "in_an_answer": live,
        "all_s": max(spent),
        "p50_s": median(spent),
        "p99_s": percentile(spent, 99),
        "exact": hows["exact"],
        "snapshot": hows["snapshot"],
        "not_resumed": sessions - len(spent),
        "lost_or_doubled": differ,
        "different_answers": len({*whole}),
    }


class ResumingClient:
    """Asks one question, and hears the answer out, whatever becomes of the gateway."""

    def __init__(self, question: int, tokens: int) -> None:
        self.question = question
        self.text = ""
        self.resume_mode = ""
        """It was resumed: `exact` or `snapshot`."""
        self.resumed_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens = tokens
        self._socket: WebSocketClient
        self._session_id = ""
        self._last_event_id = ""
        self._item_added, self._response_created = asyncio.Event(), asyncio.Event()

    async def open(self, port: int, open_limit: asyncio.Semaphore) -> None:
        """Returns when its answer has begun."""
        async with open_limit:
            self._socket = await WebSocketClient.connect(port, self._receive)
            part = {"type": "input_text", "text": f"Tell me story number {self.question}."}
            item = {"type": "message", "role": "user", "content": [part]}
            self._socket.send(type="conversation.item.create", item=item)
            await self._item_added.wait()
            response = {"max_output_tokens": self._tokens, "ignore_eos": True}
            self._socket.send(type="response.create", response=response)
            await self._response_created.wait()

    async def resume(self, port: int) -> None:
        """When the connection is lost. Gives up after RESUME_S_MAX."""
        await self._socket.disconnected.wait()
        until_s = time.monotonic() + RESUME_S_MAX
        while not self.resume_mode and time.monotonic() < until_s:
            query = f"&session_id={self._session_id}&last_event_id={self._last_event_id}"
            try:
                async with asyncio.timeout(RESUME_S_MAX):
                    self._socket = await WebSocketClient.connect(port, self._receive, query)
            except CONNECTION_ERRORS:
                await asyncio.sleep(random.uniform(0.5, 1.5) * RETRY_S)
        if not self.resume_mode and not self.done.done():
            self.done.set_result(None)

    def _receive(self, payload: bytes, now_s: float) -> None:
        event = json.loads(payload)
        self._last_event_id = event["event_id"]
        match event["type"]:
            case "session.created":
                self._session_id = event["session"]["id"]
            case "session.updated" if "resume" in event["session"]:
                self.resume_mode, self.resumed_s = event["session"]["resume"]["resumed"], now_s
                if self.resume_mode == "snapshot":
                    self.text = ""  # what was said is told again
            case "conversation.item.added":
                self._item_added.set()
            case "response.created":
                self._response_created.set()
            case "response.output_text.delta":
                self.text += event["delta"]
            case "response.done":
                self.done.set_result(None)
            case "error" if not self.done.done():
                self.done.set_exception(RuntimeError(payload.decode()))
            case _:
                pass

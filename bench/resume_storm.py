"""A gateway with many live sessions is killed; all of them resume on another gateway.

Each session requests one response of --tokens tokens at --rate tokens a second. As opening all
sessions takes time, the responses of those opened first may have ended when the gateway is killed;
`in_an_answer` is the number of responses still active then. Each client reconnects at once, and
retries every 100 ms or so. Measured: time from the kill until each session is resumed, and whether
the text of its response equals that of the same request on the gateway that is not killed. The
engine is scripted: each id it draws is a digest of all ids before it, so that a lost, duplicated or
misplaced id changes the text. Redis, engine, gateways and clients share one machine.
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
"""Number of different questions. Each is also asked on the gateway that is not killed, and its
response there has the text that the resumed responses must have."""
CONCURRENT_OPENS = 32
"""Maximum number of sessions that are being opened at the same time."""
RETRY_S = 0.1
RESUME_S_MAX = 60.0
CONNECTION_ERRORS = (OSError, TimeoutError)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sessions",
        type=int,
        default=2000,
        metavar="N",
        help="live sessions (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=60,
        metavar="N",
        help="tokens of each response (default: %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=1.0,
        help="tokens a second of each response (default: %(default)s)",
    )


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
        checkpoint = random_checkpoints.ensure_checkpoint("S")
        command = (
            *(sys.executable, "-m", "continuo.bench.scripted_engine"),
            *("context", str(sock.fileno()), str(checkpoint), str(rate), str(folder / "trace")),
        )
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        return Process(folder, *command, pass_fds=(sock.fileno(),)), address


def _start_gateway(folder: Path, redis: RedisProcess, engine: str) -> Process:
    options = ("--port", "0", "--no-web", "--store", redis.url, "--engine", engine)
    return start_continuo(folder, "gateway", *options)


async def _measure_storm(
    ports: list[int], gateway: Process, sessions: int, tokens: int, rate: float
) -> dict[str, Any]:
    here, there = ports
    undisturbed = [ResumingClient(number, tokens) for number in range(QUESTION_COUNT)]
    clients = [ResumingClient(number % QUESTION_COUNT, tokens) for number in range(sessions)]
    open_limit = asyncio.Semaphore(CONCURRENT_OPENS)
    await asyncio.gather(*(client.open(there, open_limit) for client in undisturbed))
    await asyncio.gather(*(client.open(here, open_limit) for client in clients))
    await asyncio.sleep(2 / rate)
    live = sum(not client.done.done() for client in clients)
    resuming = [asyncio.create_task(client.resume(there)) for client in clients]
    gateway.kill()
    killed_s = time.monotonic()
    await asyncio.gather(*resuming)
    spent = [client.resumed_s - killed_s for client in clients if client.resume_mode]
    async with asyncio.timeout(RESUME_S_MAX + 2 * tokens / rate):
        await asyncio.gather(*(client.done for client in (*undisturbed, *clients)))
    expected = [client.text for client in undisturbed]
    modes = Counter(client.resume_mode for client in clients)
    different = sum(client.text != expected[client.question] for client in clients)
    return {
        "sessions": sessions,
        "in_an_answer": live,
        "all_s": max(spent),
        "p50_s": median(spent),
        "p99_s": percentile(spent, 99),
        "exact": modes["exact"],
        "snapshot": modes["snapshot"],
        "not_resumed": sessions - len(spent),
        "lost_or_doubled": different,
        "different_answers": len({*expected}),
    }


class ResumingClient:
    """A client that requests one response and receives all of it, and resumes its session once when
    its gateway is lost."""

    def __init__(self, question: int, tokens: int) -> None:
        self.question = question
        self.text = ""
        self.resume_mode = ""
        """How the session was resumed: `exact` or `snapshot`; empty if not yet."""
        self.resumed_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens = tokens
        self._socket: WebSocketClient
        self._session_id = ""
        self._last_event_id = ""
        self._item_added, self._response_created = asyncio.Event(), asyncio.Event()

    async def open(self, port: int, open_limit: asyncio.Semaphore) -> None:
        """Open a session and wait until its response has begun."""
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
        """Wait until the connection is lost, then resume the session on the gateway at `port`.
        Stops retrying after RESUME_S_MAX, which leaves `resume_mode` empty."""
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
                    self.text = ""  # the server sends all deltas again
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

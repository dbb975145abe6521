"""Real `continuo` processes, and a client of their Realtime API."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 120


CLI_MODULE = "continuo.realtime.server.cli"


class Process:
    """Process of `continuo COMMAND …`, with the output read so far in `output`."""

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, module: str = CLI_MODULE
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_output(self, pattern: str) -> str:
        """Read the output up to a line that matches `pattern`. Returns the match's first group.

        Raises AssertionError if the process exits first.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"exited with {self._process.wait()}:\n{self.output}")

    def drain_output(self) -> None:
        """Read the output on a thread from now on, so that the process cannot block on its pipe."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line

    def children(self) -> list[int]:
        """Return the pids of the child processes. The child of `engine` or `serve` is the engine
        process, which runs the model."""
        tasks = Path(f"/proc/{self.pid}/task")
        listed = [(task / "children").read_text() for task in tasks.iterdir()]
        return [int(pid) for pids in listed for pid in pids.split()]

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def has_exited(self) -> bool:
        return self._process.poll() is not None

    async def wait_exit(self, within_s: float = 60) -> int:
        async with asyncio.timeout(within_s):
            while (status := self._process.poll()) is None:
                await asyncio.sleep(0.02)
        return status

    def stop(self) -> None:
        """Kill the process, even if it is stopped by SIGSTOP, and wait for its exit."""
        for pid in [self.pid, *(self.children() if self._process.poll() is None else [])]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._process.kill()
        self._process.wait()


@contextmanager
def running_process(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    process = Process(*arguments, env=env)
    try:
        yield process
    finally:
        process.stop()


def is_running(pid: int) -> bool:
    """Whether a process, not necessarily a child, is running. A zombie is not running."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def running_engine(
    *options: str, env: dict[str, str] | None = None
) -> AbstractContextManager[Process]:
    """Run an engine on a free port."""
    return running_process("engine", "--listen", "127.0.0.1:0", "--threads", "1", *options, env=env)


def running_gateway(
    *options: str, env: dict[str, str] | None = None
) -> AbstractContextManager[Process]:
    return running_process("gateway", "--port", "0", "--no-web", *options, env=env)


def read_engine_address(engine: Process) -> str:
    return engine.wait_for_output(r"Gateways +(\S+)")


def read_gateway_url(gateway: Process) -> str:
    return gateway.wait_for_output(r"Listening on +(\S+)")


async def http_status(url: str, path: str, within_s: float = 10) -> int:
    """Request a path of the gateway whose WebSocket URL is `url`. Returns the HTTP status."""
    http_url = re.sub(r"^ws(.*)/v1/realtime$", r"http\1", url) + path

    def fetch_status() -> int:
        try:
            with urllib.request.urlopen(http_url, timeout=within_s) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(fetch_status)


async def wait_ready(url: str, status: int = 200, within_s: float = READY_TIMEOUT_S) -> None:
    async with asyncio.timeout(within_s):
        while await http_status(url, "/health/ready") != status:
            await asyncio.sleep(0.05)


class RealtimeClient:
    """Realtime client that sends messages and receives responses."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.text = ""
        self.last_event: dict[str, Any] = {}
        self.session_id = ""
        self.received_types: set[str] = set()
        """Types of all events received."""

    @property
    def resume_query(self) -> str:
        """Query string for a new connection that resumes the session after the last event
        received."""
        return f"session_id={self.session_id}&last_event_id={self.last_event['event_id']}"

    async def wait_created(self) -> None:
        event = await self.wait_for(lambda event: event["type"] == "session.created")
        self.session_id = event["session"]["id"]

    async def receive(self) -> dict[str, Any]:
        self.last_event = json.loads(await asyncio.wait_for(self.socket.recv(), READY_TIMEOUT_S))
        self.received_types.add(self.last_event["type"])
        if self.last_event["type"] == "response.output_text.delta":
            self.text += self.last_event["delta"]
        return self.last_event

    async def wait_for(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not matches(await self.receive()):
            assert self.last_event["type"] != "error", self.last_event
        return self.last_event

    async def send_message(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send(type="conversation.item.create", item=item)

    async def send(self, **event: Any) -> None:
        await self.socket.send(json.dumps(event))

    async def start_response(self, **response: Any) -> None:
        """Request a response. `receive` collects its text deltas in `text`."""
        self.text = ""
        await self.send(type="response.create", response=response)

    async def wait_deltas(self, count: int) -> None:
        for _ in range(count):
            await self.wait_for(lambda event: event["type"] == "response.output_text.delta")

    async def wait_close_code(self) -> int:
        """Receive until the connection closes. Returns the server's close code, 1006 if the server
        sent no close frame."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

    async def wait_response(self) -> str:
        event = await self.wait_for(lambda event: event["type"] == "response.done")
        assert event["response"]["status"] in ("completed", "incomplete"), event
        return self.text

    async def complete_response(self, **response: Any) -> str:
        await self.start_response(**response)
        return await self.wait_response()


LONG_RESPONSE = {"max_output_tokens": 300, "ignore_eos": True}
"""Settings of a response that takes long enough for a fault to occur while it is generated."""


async def connect_client(url: str) -> AsyncIterator[RealtimeClient]:
    async with connect(url) as socket:
        client = RealtimeClient(socket)
        await client.wait_created()
        yield client

"""Real `continuo` processes, and a Realtime client of them."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

ROOT = Path(__file__).parents[2]
READY_S = 120


CONTINUO = "continuo.realtime.server.cli"


class Process:
    """A process of `continuo COMMAND …` and its output."""

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, module: str = CONTINUO
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, pattern: str) -> str:
        """Read the output up to a line that matches. Returns the first group of the match."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"exited with {self._process.wait()}:\n{self.printed}")

    def read_on(self) -> None:
        """Read the output on a thread from now on, so that the process cannot block on its pipe."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line

    def children(self) -> list[int]:
        """Return the child processes: of an engine or `serve`, the process with the model."""
        tasks = Path(f"/proc/{self.pid}/task")
        listed = [(task / "children").read_text() for task in tasks.iterdir()]
        return [int(pid) for pids in listed for pid in pids.split()]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    async def ended(self, within_s: float = 60) -> int:
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
def running(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    process = Process(*arguments, env=env)
    try:
        yield process
    finally:
        process.stop()


def is_running(pid: int) -> bool:
    """Whether a process runs, whatever its parent; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def engine(*options: str, env: dict[str, str] | None = None) -> Any:
    """Run an engine on a free port."""
    return running("engine", "--listen", "127.0.0.1:0", "--threads", "1", *options, env=env)


def gateway(*options: str, env: dict[str, str] | None = None) -> Any:
    return running("gateway", "--port", "0", "--no-web", *options, env=env)


def address_of(engine: Process) -> str:
    return engine.until(r"Gateways +(\S+)")


def url_of(gateway: Process) -> str:
    return gateway.until(r"Listening on +(\S+)")


async def get(url: str, path: str, within_s: float = 10) -> int:
    """GET a path of the gateway with this WebSocket URL. Returns the HTTP status."""
    http_url = re.sub(r"^ws(.*)/v1/realtime$", r"http\1", url) + path

    def fetch_status() -> int:
        try:
            with urllib.request.urlopen(http_url, timeout=within_s) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(fetch_status)


async def until_ready(url: str, status: int = 200, within_s: float = READY_S) -> None:
    async with asyncio.timeout(within_s):
        while await get(url, "/health/ready") != status:
            await asyncio.sleep(0.05)


class Client:
    """Realtime client that sends messages and receives responses."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.text = ""
        self.last: dict[str, Any] = {}
        self.session = ""
        self.heard: set[str] = set()
        """Types of all events received."""

    @property
    def position(self) -> str:
        """Query string of a connection that resumes the session after the last event."""
        return f"session_id={self.session}&last_event_id={self.last['event_id']}"

    async def created(self) -> None:
        event = await self.until(lambda event: event["type"] == "session.created")
        self.session = event["session"]["id"]

    async def hear(self) -> dict[str, Any]:
        self.last = json.loads(await asyncio.wait_for(self.socket.recv(), READY_S))
        self.heard.add(self.last["type"])
        if self.last["type"] == "response.output_text.delta":
            self.text += self.last["delta"]
        return self.last

    async def until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not matches(await self.hear()):
            assert self.last["type"] != "error", self.last
        return self.last

    async def say(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send(type="conversation.item.create", item=item)

    async def send(self, **event: Any) -> None:
        await self.socket.send(json.dumps(event))

    async def ask(self, **response: Any) -> None:
        """Request a response; its text is collected in `text`."""
        self.text = ""
        await self.send(type="response.create", response=response)

    async def deltas(self, count: int) -> None:
        for _ in range(count):
            await self.until(lambda event: event["type"] == "response.output_text.delta")

    async def close_code(self) -> int:
        """Receive until the server closes. Returns its close code, 1006 if there is none."""
        try:
            while True:
                await self.hear()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

    async def done(self) -> str:
        event = await self.until(lambda event: event["type"] == "response.done")
        assert event["response"]["status"] in ("completed", "incomplete"), event
        return self.text

    async def whole(self, **response: Any) -> str:
        await self.ask(**response)
        return await self.done()


LONG = {"max_output_tokens": 300, "ignore_eos": True}
"""Settings of a response during which a fault can occur."""


async def talk(url: str) -> AsyncIterator[Client]:
    async with connect(url) as socket:
        client = Client(socket)
        await client.created()
        yield client

"""Real `continuo` processes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 120


CLI_MODULE = "continuo.realtime.server.cli"


LOG_LINES = 20
"""Number of lines of each server's log that the report of a failed test shows."""
_started: "weakref.WeakSet[Process]" = weakref.WeakSet()


def logs_since(start_s: float) -> list[tuple[str, str]]:
    """Return command and last lines of the output of each process that is running, or was started
    after `start_s` of the monotonic clock."""
    return [
        (process.command, process.tail())
        for process in sorted(_started, key=lambda process: process.started_s)
        if process.started_s >= start_s or not process.has_exited
    ]


class Process:
    """Process of `continuo COMMAND …`. A thread reads its output, so that it never blocks on it."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        module: str = CLI_MODULE,
        source: Path = ROOT,
    ) -> None:
        """`source`: root of the source code to run, such as that of another version."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=source,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(source), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.command = " ".join((module, *arguments))
        self.started_s = time.monotonic()
        self._lines: list[str] = []
        self._passed_count = 0
        self._has_ended = False
        self._new_line = threading.Condition()
        threading.Thread(target=self._read, name="output", daemon=True).start()
        _started.add(self)

    @property
    def output(self) -> str:
        """Return what the process has written to stdout and stderr so far."""
        return "".join(self._lines)

    def tail(self) -> str:
        """Return the last lines of the output."""
        return "".join(self._lines[-LOG_LINES:])

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_output(self, pattern: str) -> str:
        """Wait for a line that matches `pattern`, after the line that the call before returned.
        Returns the match's first group.

        Raises AssertionError if the process exits first.
        """
        with self._new_line:
            while True:
                for line in self._lines[self._passed_count :]:
                    self._passed_count += 1
                    if found := re.search(pattern, line):
                        return found[1]
                if self._has_ended:
                    raise AssertionError(f"exited with {self._process.wait()}:\n{self.output}")
                self._new_line.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._new_line:
                self._lines.append(line)
                self._new_line.notify_all()
        with self._new_line:
            self._has_ended = True
            self._new_line.notify_all()

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
def running_process(
    *arguments: str, env: dict[str, str] | None = None, source: Path = ROOT
) -> Iterator[Process]:
    process = Process(*arguments, env=env, source=source)
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

"""Processes that a benchmark starts, kills and restarts: `continuo COMMAND …` and redis-server."""

import asyncio
import contextlib
import itertools
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

START_S_MAX = 120
FSYNC_OF_DURABILITY = {"normal": "everysec", "strict": "always"}
"""Redis's `appendfsync` for each value of `--durability`."""

_output_numbers = itertools.count()


class Process:
    """A child process whose output goes to a file of its own in `folder`."""

    def __init__(self, folder: Path, *command: str, pass_fds: Sequence[int] = ()) -> None:
        self._command = command
        self._output = folder / f"output-{next(_output_numbers)}"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, pass_fds=pass_fds
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_for_output(self, pattern: str) -> str:
        """Wait until the output matches the regular expression. Returns the first group.

        Raises RuntimeError if the process ends first, TimeoutError after START_S_MAX.
        """
        async with asyncio.timeout(START_S_MAX):
            while (found := re.search(pattern, self._output.read_text())) is None:
                if self._process.poll() is not None:
                    raise RuntimeError(f"{self._command}:\n{self._output.read_text()}")
                await asyncio.sleep(0.02)
        return found[1]

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task")
        listed = [(task / "children").read_text() for task in tasks.iterdir()]
        return [int(pid) for pids in listed for pid in pids.split()]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the process with SIGINT, and with SIGKILL if it has not ended after 10 s. No effect
        if it has already ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def start_continuo(folder: Path, command: str, *options: str) -> Process:
    return Process(folder, sys.executable, "-m", "continuo.realtime.server.cli", command, *options)


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
        # A session of its own, as under systemd: Linux shares processors between sessions.
        start_new_session=True,
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


class RedisProcess:
    """A redis-server on a free port, with an append-only file that survives a restart."""

    def __init__(self, folder: Path, fsync: str = "everysec") -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise SystemExit("redis-server is not installed (Debian: apt-get install redis-server)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._folder = folder
        self._command = (program, "--port", str(self.port), "--bind", "127.0.0.1")
        self._command += ("--dir", str(folder), "--save", "")
        self._command += ("--appendonly", "yes", "--appendfsync", fsync)
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> "Redis":
        return Redis(host="127.0.0.1", port=self.port, retry=Retry(NoBackoff(), 0))

    async def start(self) -> None:
        """Start the server and wait until it has loaded its append-only file and replies."""
        self._process = Process(self._folder, *self._command)
        async with asyncio.timeout(START_S_MAX), self.client() as client:
            while not await _is_responding(client):
                await asyncio.sleep(0.005)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


async def _is_responding(client: Any) -> bool:
    try:
        return bool(await client.execute_command("PING"))
    except (RedisError, OSError):
        return False

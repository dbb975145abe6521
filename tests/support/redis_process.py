"""Real redis-server for one test, on a free port and in a folder of its own."""

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.support.ports import free_port

REDIS_SERVER = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(
    REDIS_SERVER is None,
    reason="redis-server is not installed (Debian: apt-get install redis-server)",
)


class RedisProcess:
    """redis-server that can be stopped and started again on the same files."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        config: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._env = {**os.environ, **(env or {})}
        self._config = [] if config is None else [str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> "Redis":
        return Redis(
            host="127.0.0.1", port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0)
        )

    async def start(self) -> None:
        self.spawn()
        await self._wait_ready()

    def spawn(self) -> None:
        """Start without waiting: Redis may not answer yet, or refuse access."""
        assert REDIS_SERVER is not None
        atexit.register(self.kill)  # in case the test does not stop the server
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        quiet = ("--save", "", "--logfile", str(self.folder / "log"), "--daemonize", "no")
        command = [REDIS_SERVER, *self._config, *options, *quiet, *self._options]
        self._process = subprocess.Popen(command, env=self._env)

    async def _wait_ready(self) -> None:
        """Wait until Redis has loaded its files and answers a PING."""
        async with asyncio.timeout(20):
            while True:
                try:
                    async with self.client() as client:
                        await client.execute_command("PING")
                        return
                except (RedisError, OSError):
                    await asyncio.sleep(0.02)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    @property
    def append_log_bytes(self) -> int:
        """Length in bytes of the append-only file, which Redis writes before it replies."""
        return self._log.stat().st_size

    def truncate_append_log(self, length: int) -> None:
        """Truncate the append-only file of a stopped Redis to `length` bytes, like a crash of its
        machine."""
        assert self._process is None
        with self._log.open("r+b") as log:
            log.truncate(length)

    @property
    def _log(self) -> Path:
        (log,) = (self.folder / "appendonlydir").glob("*.incr.aof")
        return log

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(20)
            self._process = None


@contextlib.asynccontextmanager
async def running_redis(folder: Path, *options: str) -> AsyncIterator[RedisProcess]:
    process = RedisProcess(folder, *options)
    await process.start()
    try:
        yield process
    finally:
        process.stop()

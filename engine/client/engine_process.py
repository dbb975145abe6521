"""Subprocess that runs the engine. `EngineConnection.run_with_restarts` restarts it when it
dies."""

import asyncio
import contextlib
import os
import socket
import sys
import weakref
from asyncio.subprocess import Process

import msgspec

from continuo.engine.config import EngineConfig, ListenerConfig, StartOptions
from continuo.engine.wire.flight_recorder import create_memory_file

ENGINE_MODULE = "continuo.engine"
"""Python module that an engine process runs."""
STOP_GRACE_S = 5.0
"""Seconds a process has to exit once its link is closed, before it is killed."""
DEFAULT_ENVIRONMENT = {"GOMP_SPINCOUNT": "3000"}
"""Defaults for the environment of the process. Torch's threads spin for some 30 µs while they wait
for the next parallel section of a step; with libgomp's own default of 300,000 they would take a
core from the gateway between two steps."""


class EngineProcess:
    def __init__(self, config: EngineConfig, listener: ListenerConfig | None = None) -> None:
        """With `listener`, the engine process also accepts other gateways. This gateway keeps the
        listening socket open, so that connections made while the engine restarts wait in its
        backlog."""
        self._config = config
        self._listener = listener
        self._process: Process | None = None
        self._recorder_fd = create_memory_file(config.max_num_seqs)
        """Descriptor of the flight recorder's memory, which outlives the process, so that the next
        process can read which steps were in flight when this one died."""
        weakref.finalize(self, os.close, self._recorder_fd)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def launch(self) -> socket.socket:
        """Start a new process and return a socket to it. Kills the previous process if it still
        runs."""
        await self.stop(grace_s=0)
        ours, theirs = socket.socketpair()
        start = StartOptions(
            engine=self._config,
            parent=theirs.fileno(),
            recorder=self._recorder_fd,
            listening=self._listener,
        )
        inherited_fds = (
            theirs.fileno(),
            self._recorder_fd,
            *((self._listener.fd,) if self._listener else ()),
        )
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", ENGINE_MODULE, msgspec.json.encode(start).decode()),
                pass_fds=inherited_fds,
                env=DEFAULT_ENVIRONMENT | os.environ,
                start_new_session=True,
            )
        return ours

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Wait up to `grace_s` seconds for the process to exit, then kill it."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_s)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

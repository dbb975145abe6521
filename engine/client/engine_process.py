"""Subprocess that runs the engine. `EngineConnection.run_with_restarts` restarts it when it
dies."""

import asyncio
import contextlib
import os
import socket
import sys
import weakref
from asyncio.subprocess import Process
from typing import NamedTuple

import msgspec

from continuo.engine.config import EngineConfig, ListenerConfig, StartOptions
from continuo.engine.wire.flight_recorder import create_memory_file

ENGINE_MODULE = "continuo.engine"
"""Python module that an engine process runs."""
STOP_GRACE_S = 5.0
"""Seconds a process has to exit once its link is closed, before it is killed."""
STANDBY_DELAY_S = 5.0
"""Seconds after the start of a process until its standby starts, so that they do not compete for
the CPU while the model is loaded."""
DEFAULT_ENVIRONMENT = {"GOMP_SPINCOUNT": "3000"}
"""Defaults for the environment of the process. Torch's threads spin for some 30 µs while they wait
for the next parallel section of a step; with libgomp's own default of 300,000 they would take a
core from the gateway between two steps."""


class _Launched(NamedTuple):
    process: Process
    sock: socket.socket
    """Connected to the process."""


class EngineProcess:
    def __init__(self, config: EngineConfig, listener: ListenerConfig | None = None) -> None:
        """With `listener`, the engine process also accepts other gateways. This gateway keeps the
        listening socket open, so that connections made while the engine restarts wait in its
        backlog."""
        self._config = config
        self._listener = listener
        self._process: Process | None = None
        self._standby: _Launched | None = None
        self._standby_start: asyncio.Task[None] | None = None
        self._recorder_fd = create_memory_file(config.max_num_seqs)
        """Descriptor of the flight recorder's memory, which outlives the process, so that the next
        process can read which steps were in flight when this one died."""
        weakref.finalize(self, os.close, self._recorder_fd)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def standby_pid(self) -> int | None:
        return None if self._standby is None else self._standby.process.pid

    async def launch(self) -> socket.socket:
        """Start a new process, or promote the standby, and return a socket to it. Kills the
        previous process if it still runs."""
        await _stop(self._process, grace_s=0)
        launched = self._promote_standby() or await self._spawn(is_standby=False)
        self._process = launched.process
        if self._config.standby_engine and self._standby_start is None:
            self._standby_start = asyncio.create_task(self._start_standby())
        return launched.sock

    def _promote_standby(self) -> _Launched | None:
        """Make the standby load the model. Returns None if there is no living standby."""
        standby, self._standby = self._standby, None
        if standby is None:
            return None
        try:
            standby.sock.send(b"\0")
        except OSError:
            standby.sock.close()
            return None
        return standby

    async def _start_standby(self) -> None:
        await asyncio.sleep(STANDBY_DELAY_S)
        self._standby = await self._spawn(is_standby=True)
        self._standby_start = None

    async def _spawn(self, *, is_standby: bool) -> _Launched:
        ours, theirs = socket.socketpair()
        start = StartOptions(
            engine=self._config,
            parent=theirs.fileno(),
            recorder=self._recorder_fd,
            listening=self._listener,
            is_standby=is_standby,
        )
        inherited_fds = (
            theirs.fileno(),
            self._recorder_fd,
            *((self._listener.fd,) if self._listener else ()),
        )
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", ENGINE_MODULE, msgspec.json.encode(start).decode()),
                pass_fds=inherited_fds,
                env=DEFAULT_ENVIRONMENT | os.environ,
                start_new_session=True,
            )
        return _Launched(process, ours)

    def kill(self) -> None:
        """Kill the current process with SIGKILL. Its loss is handled like that of any other."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """Wait up to STOP_GRACE_S for the process to exit, then kill it. Stops the standby too."""
        if self._standby_start is not None:
            self._standby_start.cancel()
            await asyncio.wait([self._standby_start])
        if self._standby is not None:
            self._standby.sock.close()
            await _stop(self._standby.process, STOP_GRACE_S)
        await _stop(self._process, STOP_GRACE_S)


async def _stop(process: Process | None, grace_s: float) -> None:
    """Wait up to `grace_s` seconds for a process to exit, then kill it."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), grace_s)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

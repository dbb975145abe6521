"""EngineProcess: the engine's own process, as many times as it takes."""

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
"""What the process runs."""
STOP_GRACE_S = 5.0
"""How long a process that was hung up on may take before it is killed."""
DEFAULT_ENVIRONMENT = {"GOMP_SPINCOUNT": "3000"}
"""Unless it is told otherwise: torch's threads wait some 30 µs for the next part of a step without
sleeping. With libgomp's own 300,000, they would take a core from the front between two steps."""


class EngineProcess:
    def __init__(self, config: EngineConfig, listener: ListenerConfig | None = None) -> None:
        """`listening`: it takes fronts elsewhere too. The socket stays ours, so that who connects
        while the engine starts again waits."""
        self._config = config
        self._listener = listener
        self._process: Process | None = None
        self._recorder_fd = create_memory_file(config.max_num_seqs)
        """Outlives the process: the next one reads in which step this one died."""
        weakref.finalize(self, os.close, self._recorder_fd)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def launch(self) -> socket.socket:
        """Starts a fresh process, ending one that still runs; returns the socket to it."""
        await self.stop(grace_s=0)
        ours, theirs = socket.socketpair()
        start = StartOptions(
            engine=self._config,
            parent=theirs.fileno(),
            recorder=self._recorder_fd,
            listening=self._listener,
        )
        given = (
            theirs.fileno(),
            self._recorder_fd,
            *((self._listener.fd,) if self._listener else ()),
        )
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", ENGINE_MODULE, msgspec.json.encode(start).decode()),
                pass_fds=given,
                env=DEFAULT_ENVIRONMENT | os.environ,
                start_new_session=True,
            )
        return ours

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Waits for the process to end by itself, then kills it."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_s)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

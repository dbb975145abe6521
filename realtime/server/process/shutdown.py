"""Shutdown: signals, and the wait for running responses."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")

SIGNAL_MERGE_S = 0.1
"""Time after the first signal within which further signals are ignored, in seconds."""
IDLE_S = 0.5
"""Time without a turn after which the process counts as idle: enough to write the end of the last
response."""


class ShutdownSignals:
    """Handles SIGINT and SIGTERM: the first signal requests a shutdown, a second one exits at
    once. SIGHUP requests a reload, or a shutdown if the terminal of the process was closed."""

    def __init__(self) -> None:
        self.is_graceful = False
        """Whether active responses may finish, because the first signal was SIGTERM."""
        self.reload_requested = asyncio.Event()
        self._requested = asyncio.Event()
        self._requested_s = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._has_terminal = os.isatty(0)

    def _on_hangup(self) -> None:
        if self._has_terminal and _is_terminal_closed():
            self._on_signal(signal.SIGTERM)
        else:
            self.reload_requested.set()

    def _on_signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if not self._requested.is_set():
            self.is_graceful = number == signal.SIGTERM
            self._requested_s = now_s
            self._requested.set()
        elif now_s - self._requested_s > SIGNAL_MERGE_S:
            os._exit(1)

    def request_drain(self) -> None:
        """Request a shutdown, as SIGTERM does; harmless if one was requested."""
        if not self._requested.is_set():
            self._on_signal(signal.SIGTERM)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._requested.wait()

    async def run_unless_stopped(self, work: Coroutine[None, None, T]) -> T | None:
        """Return the result of `work`. If a signal arrives first, cancel `work` and return None."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return None
        finally:
            stopping.cancel()


async def wait_until_idle(turn_count: Callable[[], int], grace_s: float) -> None:
    """Wait until `turn_count()` has been 0 for IDLE_S, at most `grace_s` seconds."""
    now_s = quiet_since_s = time.monotonic()
    end_s = now_s + grace_s
    while now_s < end_s and now_s - quiet_since_s < IDLE_S:
        await asyncio.sleep(IDLE_S / 10)
        now_s = time.monotonic()
        if turn_count():
            quiet_since_s = now_s


def _is_terminal_closed() -> bool:
    """Whether the terminal of standard input was closed."""
    try:
        os.tcgetpgrp(0)
    except OSError:
        return True
    return False

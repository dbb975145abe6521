"""Shutdown: signals, and the wait for running responses."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")

SIGNAL_MERGE_S = 0.1
"""Signals within this time count as one."""
IDLE_S = 0.5
"""Time after the last response in which its end is written."""


class ShutdownSignals:
    """SIGINT and SIGTERM: the first requests a shutdown, a second exits at once."""

    def __init__(self) -> None:
        self.is_graceful = False
        """Whether active responses may finish: the signal was SIGTERM."""
        self._requested = asyncio.Event()
        self._requested_s = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if not self._requested.is_set():
            self.is_graceful = number == signal.SIGTERM
            self._requested_s = now_s
            self._requested.set()
        elif now_s - self._requested_s > SIGNAL_MERGE_S:
            os._exit(1)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._requested.wait()

    async def run_unless_stopped(self, work: Coroutine[None, None, T]) -> T | None:
        """Return the result of `work`. Returns None if a signal comes first, which cancels it."""
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
    """Wait until there has been no turn for IDLE_S, at most for `grace_s`."""
    now_s = quiet_since_s = time.monotonic()
    end_s = now_s + grace_s
    while now_s < end_s and now_s - quiet_since_s < IDLE_S:
        await asyncio.sleep(IDLE_S / 10)
        now_s = time.monotonic()
        if turn_count():
            quiet_since_s = now_s

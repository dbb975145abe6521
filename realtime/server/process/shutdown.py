"""Shutdown: signals, and the wait for running responses."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine

from continuo.realtime.server.process.run_gateway import TOGETHER_S, Value

QUIET_S = 0.5
"""So long after the last answer its end has been written."""


class Stopping:
    """Set by the first signal; the second does not wait for anybody."""

    def __init__(self) -> None:
        self.gently = False
        """Answers in flight may end."""
        self._asked = asyncio.Event()
        self._asked_s = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._heard, number)

    def _heard(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if not self._asked.is_set():
            self.gently = number == signal.SIGTERM
            self._asked_s = now_s
            self._asked.set()
        elif now_s - self._asked_s > TOGETHER_S:
            os._exit(1)

    async def asked(self) -> None:
        await self._asked.wait()

    async def unless(self, work: Coroutine[None, None, Value]) -> Value | None:
        """What the work gives. None: stopped before it was done."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.asked())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return None
        finally:
            stopping.cancel()


async def until_quiet(turns: Callable[[], int], grace_s: float) -> None:
    """Returns when there has been no turn for QUIET_S, at the latest after `grace_s`."""
    now_s = quiet_since_s = time.monotonic()
    end_s = now_s + grace_s
    while now_s < end_s and now_s - quiet_since_s < QUIET_S:
        await asyncio.sleep(QUIET_S / 10)
        now_s = time.monotonic()
        if turns():
            quiet_since_s = now_s

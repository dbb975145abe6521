"""How long the event loop is ever kept from its other work, by the clock of its own thread: what
other processes of the machine take does not count."""

import asyncio
import time


class Stalls:
    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = 0.0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> "Stalls":
        self._last = time.thread_time()
        self._tick()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def take(self) -> float:
        """The longest since it was last asked, in seconds."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def _tick(self) -> None:
        """Once in every round of the loop."""
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

"""The longest stalls of the event loop: by its own callbacks, and by other threads that hold the
interpreter lock. Time that other processes of the machine use does not count.
"""

import asyncio
import threading
import time
from pathlib import Path
from typing import NamedTuple


class Stalls:
    """Stalls by callbacks, by the CPU clock of the loop's thread."""

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
        """The longest stall since the last call, in seconds."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def _tick(self) -> None:
        """Measure one round of the loop."""
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self._handle = asyncio.get_running_loop().call_soon(self._tick)


class LockStalls:
    """Stalls by the interpreter lock, measured by a thread that repeatedly sleeps a millisecond.

    A late wake-up, less the wait for a processor (the kernel counts that for each thread), was a
    wait for the lock. The CPU time of this process bounds it: beyond that, the holder itself
    waited for a processor. Each measurement begins where the last one ended, because the thread may
    lose the lock between any two lines.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_watching = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lock stalls", daemon=True)

    def __enter__(self) -> "LockStalls":
        self._thread.start()
        self._is_watching.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> float:
        """The longest stall since the last call, in seconds."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def _watch(self) -> None:
        run_queue = _RunQueueTime()
        last = _read_times(run_queue)
        self._is_watching.set()
        while not self._stop.is_set():
            time.sleep(SLEEP_S)
            now = _read_times(run_queue)
            late_s = now.wall_s - last.wall_s - SLEEP_S - (now.queued_s - last.queued_s)
            blocked_s = min(late_s, now.computed_after_s - last.computed_s)
            self.longest_s = max(self.longest_s, blocked_s)
            last = now


SLEEP_S = 0.001


class _Times(NamedTuple):
    computed_s: float
    """CPU time of this process before `wall_s` was read."""
    queued_s: float
    wall_s: float
    computed_after_s: float
    """CPU time of this process after `wall_s` was read."""


def _read_times(run_queue: "_RunQueueTime") -> _Times:
    """If the lock is held by another thread meanwhile, the measurement that ends here or the one
    that begins here has both its wall time and its CPU time."""
    computed_s, queued_s = time.process_time(), run_queue.read_s()
    return _Times(computed_s, queued_s, time.monotonic(), time.process_time())


class _RunQueueTime:
    """How long the current thread has waited for a processor; 0 if the kernel does not count."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def read_s(self) -> float:
        try:
            return int(self._file.read_text().split()[1]) / 1e9
        except OSError:
            return 0.0

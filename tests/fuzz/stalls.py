"""How long the event loop is ever kept from its other work: by its own callbacks, and by other
threads that hold the interpreter lock. What other processes of the machine take does not count."""

import asyncio
import threading
import time
from pathlib import Path


class Stalls:
    """By the clock of the loop's own thread."""

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


class LockStalls:
    """A thread that sleeps for a millisecond and looks how much later it runs: what it did not wait
    for a processor (the kernel counts that for each thread), it waited for the interpreter lock.
    That is at most what this process has computed meanwhile, or the holder itself was kept."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lock stalls", daemon=True)

    def __enter__(self) -> "LockStalls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> float:
        """The longest since it was last asked, in seconds."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def _watch(self) -> None:
        waited = _Waited()
        while not self._stop.is_set():
            began, computed, queued = time.monotonic(), time.process_time(), waited.s()
            time.sleep(SLEEP_S)
            late_s = time.monotonic() - began - SLEEP_S
            late_s -= waited.s() - queued
            held_s = min(late_s, time.process_time() - computed)
            self.longest_s = max(self.longest_s, held_s)


SLEEP_S = 0.001


class _Waited:
    """How long the current thread has waited for a processor; 0 where the kernel does not say."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def s(self) -> float:
        try:
            return int(self._file.read_text().split()[1]) / 1e9
        except OSError:
            return 0.0

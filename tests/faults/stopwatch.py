"""Stopwatch: the time that passed, without that in which this thread waited for a processor."""

import time
from pathlib import Path

SCHEDSTAT_FILE = Path("/proc/thread-self/schedstat")


class Stopwatch:
    def __init__(self) -> None:
        self._began_s = time.monotonic() - read_runnable_s()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - read_runnable_s() - self._began_s


def read_runnable_s() -> float:
    """Seconds that this thread has waited for a processor since it started."""
    return int(SCHEDSTAT_FILE.read_text().split()[1]) / 1e9

"""Freed memory goes back to the system.

The requests that were processed at the same time may have left memory in the allocator. It is given
back once the process has grown by TRIM_GROWTH_BYTES.
"""

import asyncio
import ctypes
import resource
import time
from pathlib import Path

from continuo.engine import give_memory_back, run_in_thread

TRIM_GROWTH_BYTES = 16 * 1024 * 1024
LOOK_INTERVAL_S = 1.0
TRIM_INTERVAL_S = 10.0
"""Minimum time between two trims of the allocator, which hold its locks for milliseconds."""


async def give_back_when_grown() -> None:
    """Give the memory that was freed back to the system whenever this process has grown, until
    cancelled."""
    least_bytes, trimmed_s = _read_resident_bytes(), time.monotonic()
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        now_bytes = _read_resident_bytes()
        least_bytes = min(least_bytes, now_bytes)
        has_grown = now_bytes >= least_bytes + TRIM_GROWTH_BYTES
        if has_grown and time.monotonic() >= trimmed_s + TRIM_INTERVAL_S:
            await run_in_thread("freed memory", give_memory_back)
            least_bytes, trimmed_s = _read_resident_bytes(), time.monotonic()


def _read_resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


_STATM = Path("/proc/self/statm")


LARGE_BLOCK_BYTES = 1024 * 1024
"""Minimum size of freed blocks that glibc returns to the system. By default, glibc raises this
threshold up to 32 MiB once a large message is freed; after many large messages at the same time,
the process then kept up to 270 MiB."""


_M_MMAP_THRESHOLD = -3
"""Number of the `mallopt` parameter M_MMAP_THRESHOLD in glibc's malloc.h."""


def return_large_blocks() -> None:
    """Have glibc return large freed blocks to the system; no effect with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)

"""Garbage collection in small pieces.

A full collection visits every object: with ten thousand sessions it stops every stream for a
quarter of a second. So once a second the young objects are collected, and the survivors are frozen
(`gc.freeze`): no later collection visits them. Frozen objects are freed by their reference counts
only. A connection or session that has ended must therefore be in no reference cycle; the tests of
both prove that with the collector off.

Memory that was freed goes back to the system once the process has grown by TRIM_GROWTH_BYTES: the
requests that were processed at the same time may have left that much in the allocator.
"""

import asyncio
import ctypes
import gc
import resource
import time
from pathlib import Path

from continuo.engine import give_memory_back

COLLECTION_THRESHOLDS = (1_000, 4, 500)
"""Arguments of `gc.set_threshold`: allocations before a collection of generation 0, and collections
of one generation before one of the next. With a first value of 20,000, a collection of generation 0
took up to 50 ms on a busy machine. With 2,000 and a second value of 5, one of generation 1 took up
to 18 ms when 500 requests arrived in a second. Their product with the third is the number of
objects, 2 million, that a collection of everything visits at most."""
FREEZE_INTERVAL_S = 1.0


async def collect_garbage() -> None:
    """Freeze the objects that exist now; then collect and freeze every FREEZE_INTERVAL_S until
    cancelled. Afterwards nothing is frozen, and the collector has its earlier thresholds."""
    thresholds, trimming = gc.get_threshold(), _Trimming()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        while True:
            await asyncio.sleep(FREEZE_INTERVAL_S)
            gc.collect(1)
            gc.freeze()
            await trimming.trim_if_grown()
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


TRIM_GROWTH_BYTES = 16 * 1024 * 1024
TRIM_INTERVAL_S = 10.0
"""Minimum time between two trims of the allocator, which hold its locks for milliseconds."""


class _Trimming:
    """Gives the memory that was freed back to the system when this process has grown."""

    def __init__(self) -> None:
        self._least_bytes = _read_resident_bytes()
        """The least resident memory since the last trim."""
        self._trimmed_s = time.monotonic()

    async def trim_if_grown(self) -> None:
        now_bytes = _read_resident_bytes()
        self._least_bytes = min(self._least_bytes, now_bytes)
        has_grown = now_bytes >= self._least_bytes + TRIM_GROWTH_BYTES
        if has_grown and time.monotonic() >= self._trimmed_s + TRIM_INTERVAL_S:
            await asyncio.to_thread(give_memory_back)
            self._least_bytes, self._trimmed_s = _read_resident_bytes(), time.monotonic()


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

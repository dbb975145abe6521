"""Garbage collection in small pieces.

A full collection visits every object: with ten thousand sessions it stops every stream for a
quarter of a second. So once a second the young objects are collected, and the surviving ones are
frozen: no later collection visits them. Frozen objects are freed by their reference counts, like
all others. A connection or a session that has ended must therefore be in no reference cycle, which
the tests of both prove with the collector off.
"""

import asyncio
import ctypes
import gc

COLLECTION_THRESHOLDS = (4_000, 20, 25)
"""Thresholds of `gc`: allocations before a collection of generation 0, and collections of one
generation before one of the next. At 20,000 allocations generation 0 alone took up to 50 ms on a
busy machine; at 250 so did the objects that half a million frames of sessions had left behind."""
FREEZE_INTERVAL_S = 1.0


async def collect_garbage() -> None:
    """Collect garbage until cancelled. Objects of the startup are frozen at once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    while True:
        await asyncio.sleep(FREEZE_INTERVAL_S)
        gc.collect(1)
        gc.freeze()


LARGE_BLOCK_BYTES = 1024 * 1024
"""Freed blocks from this size on are returned to the system. By default, glibc raises this bound to
32 MiB with the first large message that is freed, and keeps up to 270 MiB after many at once."""


_M_MMAP_THRESHOLD = -3
"""Number of the `mallopt` parameter in malloc.h of glibc."""


def return_large_blocks() -> None:
    """Have glibc return large freed blocks to the system; no effect with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)

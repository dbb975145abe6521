"""Garbage collection in small pieces.

A full collection visits every object: with ten thousand sessions it stops every stream for a
quarter of a second. So once a second the young objects are collected, and the survivors are frozen
(`gc.freeze`): no later collection visits them. Frozen objects are freed by their reference counts
only. A connection or session that has ended must therefore be in no reference cycle; the tests of
both prove that with the collector off.
"""

import asyncio
import ctypes
import gc

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
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        while True:
            await asyncio.sleep(FREEZE_INTERVAL_S)
            gc.collect(1)
            gc.freeze()
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


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

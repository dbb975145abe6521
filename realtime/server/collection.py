"""Garbage collection in small pieces.

A full collection looks at every object: with ten thousand sessions it stops every stream for a
quarter of a second. So once a second the young objects are collected, and what is alive is frozen:
no later collection looks at it. Frozen objects are freed by their reference counts as before; those
that die in a reference cycle are found by a full collection when no client is connected.
"""

import asyncio
import gc
from collections.abc import Callable

YOUNG = (4_000, 20, 25)
"""Allocations before the collector looks at the youngest objects, and how many such looks come
before one at older ones. At 20,000 a look at the youngest alone took up to 50 ms on a busy machine;
at 250 so did the look at what half a million frames of sessions had left behind."""
FREEZE_S = 1.0
FULL_S = 600.0
"""Between two full collections at least."""


async def collect(is_quiet: Callable[[], bool]) -> None:
    """Collect garbage until cancelled. What is there at the start is loaded for good. `is_quiet`
    says whether a full collection delays no client."""
    loop = asyncio.get_running_loop()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG)
    full_s = loop.time()
    while True:
        await asyncio.sleep(FREEZE_S)
        gc.collect(1)
        gc.freeze()
        if loop.time() - full_s > FULL_S and is_quiet():
            full_s = loop.time()
            gc.unfreeze()
            gc.collect()
            gc.freeze()

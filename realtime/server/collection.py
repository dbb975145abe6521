"""Garbage collection in small pieces.

A full collection looks at every object: with ten thousand sessions it stops every stream for a
quarter of a second. So once a second the young objects are collected, and what is alive is frozen:
no later collection looks at it. Frozen objects are freed by their reference counts, as all others.
A connection or a session that has ended must therefore be in no reference cycle, which the tests of
both prove with the collector off.
"""

import asyncio
import gc

YOUNG = (4_000, 20, 25)
"""Allocations before the collector looks at the youngest objects, and how many such looks come
before one at older ones. At 20,000 a look at the youngest alone took up to 50 ms on a busy machine;
at 250 so did the look at what half a million frames of sessions had left behind."""
FREEZE_S = 1.0


async def collect() -> None:
    """Collect garbage until cancelled. Objects of the start are loaded for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG)
    while True:
        await asyncio.sleep(FREEZE_S)
        gc.collect(1)
        gc.freeze()

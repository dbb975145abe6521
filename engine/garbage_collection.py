"""Garbage collection in small pieces, for a process with an event loop.

A full collection visits every object: with ten thousand sessions it stops every stream of a gateway
for a quarter of a second, and with 200 running turns an engine for 20 ms. So once a second the
young objects are collected, and the survivors are frozen (`gc.freeze`): no later collection visits
them. Frozen objects are freed by their reference counts only. A connection, session or step that
has ended must therefore be in no reference cycle; tests prove that with the collector off.
"""

import asyncio
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

"""The rows of all faults, in the order of their ids."""

from tests.faults import (
    appends,
    clocks,
    deaths,
    draining,
    kv,
    peers,
    resuming,
    simulated,
    stores,
)

_ALL = (
    *appends.ROWS,
    *clocks.ROWS,
    *deaths.ROWS,
    *draining.ROWS,
    *kv.ROWS,
    *peers.ROWS,
    *resuming.ROWS,
    *simulated.ROWS,
    *stores.ROWS,
)
ROWS = {row.id: row for row in sorted(_ALL, key=lambda row: int(row.id[1:]))}

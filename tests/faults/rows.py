"""The rows of all faults, in the order of their ids."""

from tests.faults import (
    appends,
    clocks,
    credentials,
    deaths,
    device,
    draining,
    failover,
    floods,
    kv,
    peers,
    prefix_timing,
    reconnecting,
    resuming,
    simulated,
    slow_readers,
    soaking,
    stores,
    upgrading,
)

_ALL = (
    *appends.ROWS,
    *clocks.ROWS,
    *credentials.ROWS,
    *deaths.ROWS,
    *device.ROWS,
    *draining.ROWS,
    *failover.ROWS,
    *floods.ROWS,
    *kv.ROWS,
    *peers.ROWS,
    *prefix_timing.ROWS,
    *reconnecting.ROWS,
    *resuming.ROWS,
    *simulated.ROWS,
    *slow_readers.ROWS,
    *soaking.ROWS,
    *stores.ROWS,
    *upgrading.ROWS,
)
ROWS = {row.id: row for row in sorted(_ALL, key=lambda row: int(row.id[1:]))}

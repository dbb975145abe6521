"""All rows, in the order of their ids."""

from tests.faults import appends, kv, peers, resuming, stores

_ALL = (*appends.ROWS, *kv.ROWS, *peers.ROWS, *resuming.ROWS, *stores.ROWS)
ROWS = {row.id: row for row in sorted(_ALL, key=lambda row: int(row.id[1:]))}

"""All rows, in the order of their ids."""

from tests.faults import appends, resuming

_ALL = (*appends.ROWS, *resuming.ROWS)
ROWS = {row.id: row for row in sorted(_ALL, key=lambda row: int(row.id[1:]))}

"""The tables of the SQLite file, and its migrations from older layouts. `PRAGMA user_version` has
the layout of the file."""

import logging
import secrets
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

from continuo.realtime.store import keys
from continuo.realtime.store.errors import UnknownLayout

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE store (epoch TEXT NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, secret BLOB NOT NULL, owner TEXT NOT NULL,
    fence INTEGER NOT NULL, epoch INTEGER NOT NULL, parked INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, state BLOB NOT NULL,
    position INTEGER NOT NULL, next_event INTEGER NOT NULL, idempotency_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_deadline ON sessions (deadline_ms);
CREATE INDEX sessions_by_tenant ON sessions (tenant);
CREATE TABLE entries (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    n INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE responses (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    id TEXT NOT NULL, checkpoint BLOB NOT NULL, output_count INTEGER NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE TABLE output_ids (
    session TEXT NOT NULL, response TEXT NOT NULL, first INTEGER NOT NULL, ids BLOB NOT NULL,
    PRIMARY KEY (session, response, first),
    FOREIGN KEY (session, response) REFERENCES responses ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE idempotency_keys (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    key BLOB NOT NULL, digest BLOB NOT NULL, result BLOB NOT NULL, UNIQUE (session, key)
);
CREATE TABLE events (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    n INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE stored_responses (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, deadline_ms INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX stored_responses_by_tenant ON stored_responses (tenant);
CREATE TABLE usage (
    tenant TEXT NOT NULL, name TEXT NOT NULL, amount REAL NOT NULL, PRIMARY KEY (tenant, name)
) WITHOUT ROWID
"""


_Migration = Callable[[sqlite3.Connection], None]

_MIGRATIONS: tuple[_Migration, ...] = ()
"""The step from each older layout to the next one, each in one transaction; the last leads to
LAYOUT. There are none, because no other layout was ever released."""


def migrate(db: sqlite3.Connection) -> None:
    """Create the tables of a new file, and bring an older one to the present layout. Raises
    sqlite3.DatabaseError if the file has a layout that this version cannot read."""
    found = read_layout(db)
    while (layout := read_layout(db)) != keys.LAYOUT:
        step, next_layout = _find_step(layout)
        with transaction(db):
            if read_layout(db) == layout:  # unless another process has applied the step
                step(db)
                db.execute(f"PRAGMA user_version = {next_layout}")
    if 0 < found < layout:
        log.warning("the store was migrated from layout %d to layout %d", found, layout)


def read_layout(db: sqlite3.Connection) -> int:
    """Return the layout of a file. Returns 0 if it has no tables yet. Raises sqlite3.DatabaseError
    if no migration leads from its layout to the present one."""
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    if layout != 0 and not keys.LAYOUT - len(_MIGRATIONS) <= layout <= keys.LAYOUT:
        raise sqlite3.DatabaseError(str(UnknownLayout("it", layout)))
    return layout


def _find_step(layout: int) -> tuple[_Migration, int]:
    """Return the step that a file of this layout needs, and the layout to which it leads."""
    if layout == 0:
        return _create_tables, keys.LAYOUT
    return _MIGRATIONS[layout - keys.LAYOUT], layout + 1


def _create_tables(db: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    make_epoch(db)


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.commit()
    except BaseException:
        if db.in_transaction:
            db.rollback()
        raise


def make_epoch(db: sqlite3.Connection) -> str:
    epoch = secrets.token_hex(16)
    db.execute("INSERT INTO store VALUES (?)", (epoch,))
    return epoch

"""Migrations of the SQLite file: numbered steps, each in one transaction. `PRAGMA user_version` is
the number of the last step that was applied; a new file gets them all."""

import logging
import secrets
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

from continuo.realtime.store import layout_v1
from continuo.realtime.store.base import StoredResponse

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE store (epoch TEXT NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, secret BLOB NOT NULL, owner TEXT NOT NULL,
    fence INTEGER NOT NULL, epoch INTEGER NOT NULL, parked INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, state BLOB NOT NULL,
    position INTEGER NOT NULL, next_event INTEGER NOT NULL, once_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX deadlines ON sessions (deadline_ms);
CREATE TABLE entries (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    n INTEGER NOT NULL, packed BLOB NOT NULL, PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE answers (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    id TEXT NOT NULL, begun BLOB NOT NULL, said INTEGER NOT NULL, PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE TABLE said (
    session TEXT NOT NULL, answer TEXT NOT NULL, first INTEGER NOT NULL, ids BLOB NOT NULL,
    PRIMARY KEY (session, answer, first),
    FOREIGN KEY (session, answer) REFERENCES answers ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE once (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    key BLOB NOT NULL, digest BLOB NOT NULL, result BLOB NOT NULL, UNIQUE (session, key)
);
CREATE TABLE events (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    n INTEGER NOT NULL, packed BLOB NOT NULL, PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE kept (id TEXT PRIMARY KEY, deadline_ms INTEGER NOT NULL, packed BLOB NOT NULL);
"""


def _create_tables(db: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    make_epoch(db)


def _upgrade_layout_1(db: sqlite3.Connection) -> None:
    for function in (
        layout_v1.upgrade_state,
        layout_v1.upgrade_entry,
        layout_v1.upgrade_event,
        layout_v1.upgrade_checkpoint,
        layout_v1.upgrade_response,
    ):
        db.create_function(function.__name__, -1, _or_unchanged(function))
    db.execute("UPDATE sessions SET state = upgrade_state(state)")
    db.execute("UPDATE entries SET packed = upgrade_entry(packed)")
    db.execute("UPDATE events SET packed = upgrade_event(packed)")
    db.execute("UPDATE answers SET begun = upgrade_checkpoint(begun)")
    db.execute("UPDATE kept SET packed = upgrade_response(packed, id)")


def _or_unchanged(upgrade: Callable[..., bytes]) -> Callable[..., bytes]:
    """Keep a malformed value as it is: only its session cannot be read, as before."""

    def upgrade_or_keep(packed: bytes, *args: str) -> bytes:
        try:
            return upgrade(packed, *args)
        except Exception:
            log.exception("%s failed; the value stays as it is", upgrade.__name__)
            return packed

    return upgrade_or_keep


_STEPS = (_create_tables, _upgrade_layout_1)
LAYOUT = len(_STEPS)
"""Layout of a file that has all migrations."""

_ADDITIONS = """
CREATE TABLE IF NOT EXISTS usage (
    tenant TEXT NOT NULL, name TEXT NOT NULL, amount REAL NOT NULL, PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept_tenants (
    id TEXT PRIMARY KEY REFERENCES kept ON DELETE CASCADE, tenant TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tenants ON sessions (tenant);
CREATE INDEX IF NOT EXISTS tenants_kept ON kept_tenants (tenant)
"""
"""Tables and indexes about tenants. Earlier versions of layout 2 lack and ignore them, so the
layout is the same."""


def _add_tenants(db: sqlite3.Connection) -> None:
    """Add what is missing of _ADDITIONS, and the tenants of responses that an earlier version has
    stored."""
    for statement in _ADDITIONS.split(";"):
        db.execute(statement)
    db.create_function("tenant_of", 1, _tenant_of)
    db.execute(
        "INSERT INTO kept_tenants SELECT id, tenant_of(packed) FROM kept "
        "WHERE id NOT IN (SELECT id FROM kept_tenants)"
    )


def _tenant_of(packed: bytes) -> str:
    try:
        return msgspec.msgpack.decode(packed, type=StoredResponse).tenant
    except msgspec.DecodeError:
        return ""


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the present version. Raises sqlite3.DatabaseError if a newer version of
    Continuo has written it."""
    found = _read_version(db)
    for version in range(found, len(_STEPS)):
        with transaction(db):
            if _read_version(db) == version:  # unless another process has applied the step
                _STEPS[version](db)
                db.execute(f"PRAGMA user_version = {version + 1}")
    if (version := _read_version(db)) > LAYOUT:
        raise sqlite3.DatabaseError(
            f"a newer version of Continuo has written it, in layout {version}; this version reads "
            f"layouts up to {LAYOUT}"
        )
    with transaction(db):
        _add_tenants(db)
    if 0 < found < version:
        log.warning("the store was migrated from layout %d to layout %d", found, version)


def _read_version(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


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

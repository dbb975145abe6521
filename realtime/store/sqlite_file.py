"""The SQLite file: its layout, its epoch, and how it is opened."""

import os
import secrets
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from realtime.store import keys
from realtime.store.durability import Durability

VERSION = 1
SCHEMA = """
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


def connect(file: Path | None, durability: Durability) -> sqlite3.Connection:
    """What is said is nobody else's business: the file is its owner's alone."""
    if file is not None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(
        file or ":memory:",
        timeout=keys.TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'strict' else 'NORMAL'}")
    db.execute("PRAGMA foreign_keys = ON")
    with transaction(db):
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"its layout is version {version}, not {VERSION}")
        if version == 0:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            make_epoch(db)
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.rollback()
        raise
    db.commit()


def read_epoch(db: sqlite3.Connection) -> str | None:
    row = db.execute("SELECT epoch FROM store").fetchone()
    return None if row is None else row[0]


def make_epoch(db: sqlite3.Connection) -> str:
    epoch = secrets.token_hex(16)
    db.execute("INSERT INTO store VALUES (?)", (epoch,))
    return epoch

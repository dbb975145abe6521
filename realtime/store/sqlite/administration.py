"""Administration of a SQLite file, in another process than the server that may use it."""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.backup_file import BackupRecord, ResponseRecord, SessionRecord
from continuo.realtime.store.base import StoredResponse
from continuo.realtime.store.codec import pack_ids
from continuo.realtime.store.errors import StoreUnavailable, StoreUnusable
from continuo.realtime.store.sqlite.file import connect, read_epoch
from continuo.realtime.store.sqlite.migrations import read_layout, transaction
from continuo.realtime.store.sqlite.tables import Tables
from continuo.realtime.store.stats import StoreStats, VacuumResult

RESTORED_OWNER = "restored"
"""Owner of restored sessions: no gateway, so that any may claim them."""
_LIVE = "deadline_ms > ? AND owner <> ''"


def check_sqlite(file: Path) -> str:
    """Check that a file can be the store, without creating or changing it. Returns a description of
    it. Raises StoreError."""
    if not file.exists():
        folder = next(each for each in file.absolute().parents if each.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StoreUnusable(f"the store {file} cannot be created: {folder} is not writable")
        return f"{file} will be created"
    layout = SqliteAdministration(file).read_layout()
    if not os.access(file, os.W_OK) or not os.access(file.absolute().parent, os.W_OK):
        raise StoreUnusable(f"the store {file} or its folder is not writable")
    is_current = layout in (0, keys.LAYOUT)
    return f"{file}" if is_current else f"{file}, will be migrated from layout {layout}"


class SqliteAdministration:
    def __init__(self, file: Path, *, create: bool = False) -> None:
        """Raises StoreUnusable if the file does not exist, unless `create`."""
        self._file = file
        if not create and not file.is_file():
            raise StoreUnusable(f"the store {file} does not exist")

    def read_layout(self) -> int:
        with self._reading() as db:
            return read_layout(db)

    async def compute_stats(self) -> StoreStats:
        with self._reading() as db:
            stats = StoreStats(layout=read_layout(db), epoch=read_epoch(db) or "")
            rows = db.execute(
                f"SELECT tenant, position, parked FROM sessions WHERE {_LIVE}", _now()
            )
            for tenant, entries, parked in rows:
                stats.add_session(tenant, entries, is_parked=bool(parked))
            live = f"SELECT id FROM sessions WHERE {_LIVE}"
            sql = f"SELECT count(*) FROM responses WHERE session IN ({live})"
            (stats.running_responses,) = db.execute(sql, _now()).fetchone()
            sql = "SELECT count(*) FROM stored_responses WHERE deadline_ms > ?"
            (stats.stored_responses,) = db.execute(sql, _now()).fetchone()
            stats.size_bytes = self._size_bytes()
            return stats

    async def export(self, scratch: Path) -> AsyncIterator[BackupRecord]:
        copy = scratch / "store.db"
        with self._reading() as source, _closing(connect(copy, "normal")) as empty:
            source.backup(empty)  # one consistent state, also while a server writes
        with self._mapped_errors(), _closing(connect(copy, "normal")) as db:  # migrates the copy
            for record in _iter_records(db):
                yield record

    async def add(self, record: BackupRecord) -> bool:
        with self._writing() as db:
            try:
                with transaction(db):
                    if isinstance(record, SessionRecord):
                        _insert_session(db, record)
                    else:
                        _insert_response(db, record)
            except sqlite3.IntegrityError:
                return False
            return True

    async def vacuum(self) -> VacuumResult:
        before_bytes = self._size_bytes()
        with self._writing() as db:
            tables, expired = Tables(db, time.time), 0
            while True:
                with transaction(db):
                    swept = tables.sweep(keys.SWEEP_MAX)
                expired += len(swept.expired)
                if swept.examined < keys.SWEEP_MAX:
                    break
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return VacuumResult(expired, before_bytes, self._size_bytes())

    async def aclose(self) -> None:
        """Every call closes its own connection."""

    def _size_bytes(self) -> int:
        files = (self._file, self._file.with_name(f"{self._file.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """Open the file without migrating it."""
        with self._mapped_errors():
            uri = f"{self._file.absolute().as_uri()}?mode=rw"
            with _closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                yield db

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._mapped_errors():
            self._file.absolute().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _closing(connect(self._file, "strict")) as db:
                yield db

    @contextmanager
    def _mapped_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"the store {self._file} cannot be used: {error}") from error
        except (OSError, sqlite3.DatabaseError) as error:
            raise StoreUnusable(f"the store {self._file} cannot be used: {error}") from error


@contextmanager
def _closing(db: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    try:
        yield db
    finally:
        db.close()


def _now() -> tuple[int]:
    return (int(time.time() * 1000),)


def _iter_records(db: sqlite3.Connection) -> Iterator[BackupRecord]:
    tables, (now,) = Tables(db, time.time), _now()
    sessions = db.execute(f"SELECT id FROM sessions WHERE {_LIVE} ORDER BY id", (now,)).fetchall()
    for (session,) in sessions:
        snapshot = tables.load(session)
        if snapshot is None:
            continue  # expired just now
        metadata = snapshot.metadata
        sql = "SELECT key, digest, result FROM idempotency_keys WHERE session = ? ORDER BY n"
        yield SessionRecord(
            id=session,
            tenant=metadata.tenant,
            secret=metadata.secret,
            fence=metadata.fence,
            epoch=metadata.epoch,
            created_ms=metadata.created_ms,
            remaining_ms=metadata.deadline_ms - now,
            state=snapshot.state,
            entries=snapshot.entries,
            running_responses=snapshot.running_responses,
            events=snapshot.events,
            requests=tuple(db.execute(sql, (session,))),
        )
    sql = "SELECT body, deadline_ms FROM stored_responses WHERE deadline_ms > ?"
    for body, deadline_ms in db.execute(sql, (now,)):
        response = msgspec.msgpack.decode(body, type=StoredResponse)
        yield ResponseRecord(response=response, remaining_ms=deadline_ms - now)


def _insert_session(db: sqlite3.Connection, record: SessionRecord) -> None:
    """Insert a session, without an owner that could write it, and in a new epoch: event ids issued
    after the backup cannot be resumed from. Raises IntegrityError if the id is in use."""
    (now,) = _now()
    fence = max(record.fence + 1, now)
    db.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            record.tenant,
            record.secret,
            RESTORED_OWNER,
            fence,
            max(record.epoch + 1, fence),
            record.created_ms,
            now + record.remaining_ms,
            record.state,
            len(record.entries),
            record.events.next_offset,
            sum(keys.IDEMPOTENCY_OVERHEAD_BYTES + len(result) for _, _, result in record.requests),
        ),
    )
    entries = [(record.id, n, entry) for n, entry in enumerate(record.entries)]
    db.executemany("INSERT INTO entries VALUES (?, ?, ?)", entries)
    events = enumerate(record.events.bodies, record.events.first_offset)
    db.executemany(
        "INSERT INTO events VALUES (?, ?, ?)", [(record.id, n, body) for n, body in events]
    )
    db.executemany(
        "INSERT INTO idempotency_keys (session, key, digest, result) VALUES (?, ?, ?, ?)",
        [(record.id, *request) for request in record.requests],
    )
    for running in record.running_responses:
        checkpoint, ids = running.checkpoint, running.ids
        values = (record.id, checkpoint.id, msgspec.msgpack.encode(checkpoint), len(ids))
        db.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", values)
        if ids:
            chunk = (record.id, checkpoint.id, 0, pack_ids(ids))
            db.execute("INSERT INTO output_ids VALUES (?, ?, ?, ?)", chunk)


def _insert_response(db: sqlite3.Connection, record: ResponseRecord) -> None:
    (now,) = _now()
    response, deadline_ms = record.response, now + record.remaining_ms
    values = (response.id, response.tenant, deadline_ms, msgspec.msgpack.encode(response))
    db.execute("INSERT INTO stored_responses VALUES (?, ?, ?, ?)", values)

"""Tables: the operations of the store in SQL. The worker runs each within a transaction, and rolls
back the writes of an operation that raises. It keeps those of an operation that raises
StoreReplaced, because `verify` may have written a new epoch before."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    DuplicateWrite,
    IdempotentRequest,
    LogEnd,
    NewSession,
    ResponseCheckpoint,
    RunningResponse,
    SessionLease,
    SessionMetadata,
    Snapshot,
    StoredEvents,
    StoredResponse,
    SweepResult,
    TokenBatch,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.codec import digest, join_ids, pack_ids
from continuo.realtime.store.errors import (
    IdempotencyConflict,
    LeaseLost,
    ResponseNotFound,
    SessionDataLost,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    StoreError,
    StoreReplaced,
)
from continuo.realtime.store.sqlite.file import read_epoch
from continuo.realtime.store.sqlite.migrations import make_epoch

WallClock = Callable[[], float]
"""Returns the time in seconds since 1970."""

_NO_OWNER = ""
"""Value of the column `owner` that marks a session as a tombstone."""
_PROBE_ID = "probe"


class Tables:
    """Operations over one connection to the SQLite file, and the epoch that the file had when it
    was opened. Called on one thread, that of the worker; `store administration`, in a process of
    its own, calls it within its own transactions. Bytes of sessions are stored as they come, those
    of checkpoints and stored responses are encoded here."""

    def __init__(self, db: sqlite3.Connection, clock: WallClock) -> None:
        self._db = db
        self._clock = clock
        self.epoch = read_epoch(db) or ""

    @property
    def db(self) -> sqlite3.Connection:
        return self._db

    def reopen(self, db: sqlite3.Connection) -> None:
        """Use another connection from now on, to the same file or another one."""
        self._db = db
        self.epoch = read_epoch(db) or ""

    def _execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    def _fetch_one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        return self._execute(sql, *values).fetchone()

    def _ms_from_now(self, for_s: float) -> int:
        return int((self._clock() + for_s) * 1000)

    def verify(self) -> None:
        """Raise StoreReplaced if the epoch in the file has changed. If the file has none, creates a
        new one before raising."""
        found = read_epoch(self._db)
        if found != self.epoch:
            self.epoch = found or make_epoch(self._db)
            raise StoreReplaced("the store was replaced by another one")

    # ------------------------------------------------------------ health

    def write_page(self) -> None:
        """Write a page to the disk without a change of data. SQLite skips an update that does not
        change the row, so the row is changed and changed back."""
        self._execute("UPDATE store SET epoch = epoch || '-'")
        self._execute("UPDATE store SET epoch = substr(epoch, 1, length(epoch) - 1)")

    def reserve_space(self, size: int) -> None:
        """Write `size` bytes, as an expired response. If the transaction commits, the disk has room
        for them. See `release_space`."""
        sql = "INSERT OR REPLACE INTO stored_responses VALUES (?, '', 0, zeroblob(?))"
        self._execute(sql, _PROBE_ID, size)

    def release_space(self) -> None:
        """Delete the bytes that `reserve_space` wrote. Call in a later transaction: only the commit
        of the write proves that the disk has room for them."""
        self._execute("DELETE FROM stored_responses WHERE id = ?", _PROBE_ID)

    # ------------------------------------------------------------ leases

    def _make_not_found(self, session: str) -> SessionNotFound:
        self.verify()
        return SessionNotFound(session)

    def _check_lease(self, lease: SessionLease) -> tuple[int, int]:
        """Check that the lease still holds, and return the number of entries and the number of the
        next event. Raises the errors of `Store` for calls with a lease."""
        if lease.store_epoch != self.epoch:
            raise StoreReplaced(f"the lease of session {lease.session} is of another store")
        row = self._fetch_one(
            "SELECT owner, fence, position, next_event FROM sessions WHERE id = ?", lease.session
        )
        if row is None:
            raise self._make_not_found(lease.session)
        owner, fence, entry_count, next_event = row
        if owner == _NO_OWNER:
            raise SessionEnded(lease.session)
        if (owner, fence) != (lease.owner, lease.fence):
            if fence < lease.fence:
                raise SessionDataLost(lease.session, f"fence {fence}, not {lease.fence}")
            raise LeaseLost(lease.session, owner)
        return entry_count, next_event

    # ------------------------------------------------------------ sessions

    def create(self, new: NewSession) -> SessionLease:
        row = self._fetch_one(
            "SELECT owner, secret, fence FROM sessions WHERE id = ? AND position = 0", new.id
        )
        if row is not None and row[:2] == (new.owner, new.secret):
            return SessionLease(new.id, new.owner, row[2], self.epoch)
        self.verify()
        try:
            return self._insert_session(new, self._ms_from_now(0))
        except sqlite3.IntegrityError as error:
            existing = self._fetch_one("SELECT owner FROM sessions WHERE id = ?", new.id)
            is_ended = existing == (_NO_OWNER,)
            raise (SessionEnded(new.id) if is_ended else SessionExists(new.id)) from error

    def _insert_session(self, new: NewSession, fence: int) -> SessionLease:
        values = (new.id, new.tenant, new.secret, new.owner, fence, 0, 0, self._ms_from_now(0))
        self._execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)",
            *values,
            self._ms_from_now(new.ttl_s),
            new.state,
        )
        return SessionLease(new.id, new.owner, fence, self.epoch)

    def find(self, session: str) -> SessionMetadata | None:
        row = self._fetch_one(
            "SELECT tenant, secret, owner, fence, epoch, position, parked, created_ms, deadline_ms "
            "FROM sessions WHERE id = ? AND deadline_ms > ? AND owner <> ?",
            session,
            self._ms_from_now(0),
            _NO_OWNER,
        )
        if row is None:
            self.verify()
            return None
        tenant, secret, owner, fence, epoch, entry_count, parked, created_ms, deadline_ms = row
        return SessionMetadata(
            id=session,
            tenant=tenant,
            secret=secret,
            owner=owner,
            fence=fence,
            epoch=epoch,
            entry_count=entry_count,
            is_parked=bool(parked),
            created_ms=created_ms,
            deadline_ms=deadline_ms,
        )

    def load(self, session: str) -> Snapshot | None:
        metadata = self.find(session)
        if metadata is None:
            return None
        row = self._fetch_one("SELECT state, next_event FROM sessions WHERE id = ?", session)
        assert row is not None, "its metadata was found"
        log = self._execute("SELECT body FROM entries WHERE session = ? ORDER BY n", session)
        events = self._execute("SELECT body FROM events WHERE session = ? ORDER BY n", session)
        bodies = tuple(body for (body,) in events)
        return Snapshot(
            metadata=metadata,
            state=row[0],
            entries=tuple(entry for (entry,) in log),
            running_responses=tuple(self._load_responses(session)),
            events=StoredEvents(row[1] - len(bodies), bodies),
        )

    def _load_responses(self, session: str) -> Iterator[RunningResponse]:
        rows = self._execute(
            "SELECT id, checkpoint FROM responses WHERE session = ? ORDER BY id", session
        )
        for response_id, checkpoint in rows.fetchall():
            chunks = self._execute(
                "SELECT first, ids FROM output_ids WHERE session = ? AND response = ?",
                session,
                response_id,
            )
            yield RunningResponse(
                msgspec.msgpack.decode(checkpoint, type=ResponseCheckpoint),
                join_ids(chunks.fetchall()),
            )

    def claim(
        self, session: str, owner: str, *, ttl_s: float, expected_fence: int | None = None
    ) -> SessionLease:
        row = self._fetch_one(
            "UPDATE sessions SET owner = ?, fence = max(fence + 1, ?), parked = 0, "
            "deadline_ms = ? WHERE id = ? AND deadline_ms > ? AND owner <> ? "
            "AND fence = coalesce(?, fence) RETURNING fence",
            owner,
            self._ms_from_now(0),
            self._ms_from_now(ttl_s),
            session,
            self._ms_from_now(0),
            _NO_OWNER,
            expected_fence,
        )
        if row is None:
            metadata = self.find(session)
            raise (
                self._make_not_found(session)
                if metadata is None
                else LeaseLost(session, metadata.owner)
            )
        return SessionLease(session, owner, row[0], self.epoch)

    def confirm(self, lease: SessionLease, end: LogEnd | None = None) -> None:
        found = LogEnd(*self._check_lease(lease))
        if end not in (None, found):
            raise SessionDataLost(
                lease.session,
                f"{found.entry_count} entries and {found.next_offset} events, not "
                f"{end.entry_count} and {end.next_offset}",
            )

    def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        self._check_lease(lease)
        self._execute(
            "UPDATE sessions SET deadline_ms = ?, parked = ? WHERE id = ?",
            self._ms_from_now(ttl_s),
            is_parked,
            lease.session,
        )

    def delete(self, lease: SessionLease) -> None:
        try:
            self._check_lease(lease)
        except (SessionNotFound, SessionEnded):
            return
        self._put_tombstone(lease.session, lease.fence)

    def force_delete(self, session: str) -> int:
        metadata = self.find(session)
        if metadata is None:
            raise SessionNotFound(session)
        self._put_tombstone(session, metadata.fence + 1)
        return metadata.fence + 1

    def _put_tombstone(self, session: str, fence: int) -> None:
        """Replace a session by a tombstone."""
        self._execute("DELETE FROM sessions WHERE id = ?", session)
        now, until = self._ms_from_now(0), self._ms_from_now(keys.TOMBSTONE_S)
        values = (session, "", b"", _NO_OWNER, fence, 0, 0, now, until, b"")
        self._execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)", *values
        )

    def sweep(self, limit: int) -> SweepResult:
        now, limit = self._ms_from_now(0), min(limit, keys.SWEEP_MAX)
        self._execute("DELETE FROM stored_responses WHERE deadline_ms <= ?", now)
        rows = self._execute(
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE deadline_ms <= ? "
            "ORDER BY deadline_ms LIMIT ?) RETURNING id, owner",
            now,
            limit,
        )
        removed = rows.fetchall()
        return SweepResult(
            len(removed), [session for session, owner in removed if owner != _NO_OWNER]
        )

    # ------------------------------------------------------------ writing

    def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        entry_count, next_event = self._check_lease(lease)
        if batch.request is not None and batch.request.key not in batch.revoked_keys:
            duplicate = self._find_duplicate(lease.session, batch.request)
            if duplicate is not None:
                return duplicate
        if batch.kept_entries is not None and batch.kept_entries > entry_count:
            raise SessionDataLost(lease.session, f"{entry_count} entries, not {batch.kept_entries}")
        if batch.events is not None and batch.events.first_offset > next_event:
            detail = f"{next_event} events, not {batch.events.first_offset}"
            raise SessionDataLost(lease.session, detail)
        if batch.kept_entries is not None:
            if batch.kept_entries < entry_count:
                self._delete_from("entries", lease.session, batch.kept_entries)
            entry_count = self._put_entries(lease.session, batch.kept_entries, batch.entries)
        if batch.events is not None:
            if batch.events.first_offset < next_event:
                self._delete_from("events", lease.session, batch.events.first_offset)
            next_event = self._put_events(lease.session, batch.events)
        for key in batch.revoked_keys:
            self._revoke_request(lease.session, key)
        for request in batch.restored_requests:
            self._revoke_request(lease.session, request.key)
        requests = (
            batch.restored_requests
            if batch.request is None
            else (*batch.restored_requests, batch.request)
        )
        if requests:
            self._put_requests(lease.session, requests)
        self._put_responses(lease.session, batch)
        self._execute(
            "UPDATE sessions SET position = ?, next_event = ?, epoch = coalesce(?, epoch), "
            "state = coalesce(?, state) WHERE id = ?",
            entry_count,
            next_event,
            batch.epoch,
            batch.state,
            lease.session,
        )
        return WriteResult(entry_count, next_event)

    def recreate(
        self, lease: SessionLease, new: NewSession, batch: WriteBatch, *, expected_fence: int
    ) -> SessionLease:
        """Write a whole session again. Which fence another gateway had before the loss is not
        stored, because one gateway alone has the file: no other can have written the session again.
        One of an earlier process, in an older copy of the file, has a lower fence."""
        assert batch.is_whole, "a part of a session"
        self.verify()
        row = self._fetch_one(
            "SELECT owner, fence, deadline_ms FROM sessions WHERE id = ?", lease.session
        )
        fence = 0
        if row is not None:
            owner, stored_fence, deadline_ms = row
            if owner == _NO_OWNER:
                raise SessionEnded(lease.session)
            if deadline_ms > self._ms_from_now(0):
                if owner != lease.owner and stored_fence >= lease.fence:
                    raise LeaseLost(lease.session, owner)
                fence = stored_fence
        if fence != expected_fence:
            raise SessionExists(lease.session) if fence else SessionNotFound(lease.session)
        self._execute("DELETE FROM sessions WHERE id = ?", lease.session)
        now = self._ms_from_now(0)
        granted = self._insert_session(new, max(now, lease.fence + 1, fence + 1))
        self.write(granted, batch)
        return granted

    def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        self._check_lease(lease)
        duplicate = self._find_duplicate(lease.session, request)
        return None if duplicate is None else duplicate.result

    def _find_duplicate(self, session: str, request: IdempotentRequest) -> DuplicateWrite | None:
        row = self._fetch_one(
            "SELECT digest, result FROM idempotency_keys WHERE session = ? AND key = ?",
            session,
            digest(request.key.encode()),
        )
        if row is None:
            return None
        if row[0] != request.content_digest:
            raise IdempotencyConflict(request.key)
        return DuplicateWrite(row[1])

    def _put_requests(self, session: str, requests: tuple[IdempotentRequest, ...]) -> None:
        assert all(
            len(request.result) <= keys.IDEMPOTENCY_RESULT_BYTES_MAX for request in requests
        ), "a result is short"
        self._db.executemany(
            "INSERT INTO idempotency_keys (session, key, digest, result) VALUES (?, ?, ?, ?)",
            [
                (session, digest(request.key.encode()), request.content_digest, request.result)
                for request in requests
            ],
        )
        row = self._fetch_one(
            "UPDATE sessions SET idempotency_bytes = idempotency_bytes + ? WHERE id = ? "
            "RETURNING idempotency_bytes",
            sum(keys.IDEMPOTENCY_OVERHEAD_BYTES + len(request.result) for request in requests),
            session,
        )
        assert row is not None, "the lease was checked"
        if row[0] > keys.IDEMPOTENCY_BYTES_MAX:
            self._evict_oldest_requests(session, row[0])

    def _revoke_request(self, session: str, key: str) -> None:
        row = self._fetch_one(
            "DELETE FROM idempotency_keys WHERE session = ? AND key = ? RETURNING result",
            session,
            digest(key.encode()),
        )
        if row is not None:
            self._execute(
                "UPDATE sessions SET idempotency_bytes = idempotency_bytes - ? WHERE id = ?",
                keys.IDEMPOTENCY_OVERHEAD_BYTES + len(row[0]),
                session,
            )

    def _evict_oldest_requests(self, session: str, size: int) -> None:
        """Evict the oldest idempotency records of a session until 7/8 of the limit are left.
        `size`: bytes of all its records."""
        rows = self._execute(
            "SELECT n, result FROM idempotency_keys WHERE session = ? ORDER BY n", session
        )
        last = 0
        for n, result in rows:
            if size <= keys.IDEMPOTENCY_BYTES_MAX * 7 // 8:
                break
            size -= keys.IDEMPOTENCY_OVERHEAD_BYTES + len(result)
            last = n
        self._execute("DELETE FROM idempotency_keys WHERE session = ? AND n <= ?", session, last)
        self._execute("UPDATE sessions SET idempotency_bytes = ? WHERE id = ?", size, session)

    def _delete_from(self, table: Literal["entries", "events"], session: str, at: int) -> None:
        self._execute(f"DELETE FROM {table} WHERE session = ? AND n >= ?", session, at)

    def _put_entries(self, session: str, at: int, entries: tuple[bytes, ...]) -> int:
        rows = [(session, n, entry) for n, entry in enumerate(entries, at)]
        self._db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        return at + len(entries)

    def _put_events(self, session: str, events: StoredEvents) -> int:
        rows = [(session, n, body) for n, body in enumerate(events.bodies, events.first_offset)]
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        self._delete_old_events(session)
        return events.next_offset

    def _delete_old_events(self, session: str) -> None:
        sql = "SELECT n, length(body) FROM events WHERE session = ? ORDER BY n DESC"
        weight = 0
        for count, (n, size) in enumerate(self._execute(sql, session), 1):
            weight += size
            if count > keys.EVENTS_MAX or weight > keys.EVENTS_BYTES_MAX:
                self._execute("DELETE FROM events WHERE session = ? AND n <= ?", session, n)
                return

    def _put_responses(self, session: str, batch: WriteBatch) -> None:
        for response_id in batch.ended_responses:
            self._execute(
                "DELETE FROM responses WHERE session = ? AND id = ?", session, response_id
            )
        for checkpoint in batch.started_responses:
            values = (session, checkpoint.id, msgspec.msgpack.encode(checkpoint))
            self._execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, 0)", *values)

    def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        self._check_lease(lease)
        row = self._fetch_one(
            "SELECT output_count FROM responses WHERE session = ? AND id = ?",
            lease.session,
            response_id,
        )
        if row is None:
            raise ResponseNotFound(response_id)
        if first > row[0]:
            raise SessionDataLost(lease.session, f"{row[0]} ids of {response_id}, not {first}")
        # Journaled ids are never replaced: of a repeated batch, only the new ids are appended.
        new = ids[row[0] - first :]
        if not new:
            return row[0]
        values = (lease.session, response_id, row[0], pack_ids(new))
        self._execute("INSERT INTO output_ids VALUES (?, ?, ?, ?)", *values)
        total = row[0] + len(new)
        sql = "UPDATE responses SET output_count = ? WHERE session = ? AND id = ?"
        self._execute(sql, total, lease.session, response_id)
        return total

    def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        return [self._try_journal(batch) for batch in batches]

    def _try_journal(self, batch: TokenBatch) -> int | None:
        try:
            return self.journal(*batch)
        except StoreError:
            return None

    # ------------------------------------------------------------ responses

    def put_response(self, response: StoredResponse, ttl_s: float) -> None:
        deadline_ms, body = self._ms_from_now(ttl_s), msgspec.msgpack.encode(response)
        sql = "INSERT OR REPLACE INTO stored_responses VALUES (?, ?, ?, ?)"
        self._execute(sql, response.id, response.tenant, deadline_ms, body)

    def find_response(self, response_id: str) -> StoredResponse | None:
        sql = "SELECT body FROM stored_responses WHERE id = ? AND deadline_ms > ?"
        row = self._fetch_one(sql, response_id, self._ms_from_now(0))
        if row is None:
            self.verify()
            return None
        return msgspec.msgpack.decode(row[0], type=StoredResponse)

    def has_response(self, response_id: str) -> bool:
        sql = "SELECT 1 FROM stored_responses WHERE id = ? AND deadline_ms > ?"
        if self._fetch_one(sql, response_id, self._ms_from_now(0)) is not None:
            return True
        self.verify()
        return False

"""Tables: what the store does, in SQL, within a transaction. What a call that raises has written is
taken back, unless it raises StoreLost."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    Answer,
    Begun,
    Card,
    Change,
    Entry,
    Events,
    Kept,
    Lease,
    NewSession,
    Once,
    Repeated,
    Snapshot,
    Spoken,
    Swept,
    Written,
)
from continuo.realtime.store.codec import (
    digest,
    join_ids,
    pack,
    pack_entry,
    pack_ids,
    pack_kept,
    unpack,
    unpack_entry,
    unpack_kept,
)
from continuo.realtime.store.errors import (
    Conflict,
    SessionBehind,
    SessionEnded,
    SessionExists,
    StaleFence,
    StoreError,
    StoreLost,
    UnknownAnswer,
    UnknownSession,
)
from continuo.realtime.store.sqlite.file import make_epoch, read_epoch

Clock = Callable[[], float]
"""Seconds since 1970."""

_NOBODY = ""
"""Owns a session that was ended."""
_PROBE = "probe"
_ONCE_RECORD_BYTES = 17
"""Beside the result; counted as Redis holds it, so that both forget alike."""


class Tables:
    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self.epoch = read_epoch(db) or ""

    def reopened(self, db: sqlite3.Connection) -> None:
        """Go on with another file, or with the same one anew."""
        self._db = db
        self.epoch = read_epoch(db) or ""

    def _execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        return self._execute(sql, *values).fetchone()

    def _in_ms(self, for_s: float) -> int:
        return int((self._clock() + for_s) * 1000)

    def verify(self) -> None:
        """Raises StoreLost; the new epoch is written all the same."""
        found = read_epoch(self._db)
        if found != self.epoch:
            lost, self.epoch = self.epoch, found or make_epoch(self._db)
            raise StoreLost(f"this is not the store it was: {lost} is gone")

    # ------------------------------------------------------------ health

    def touch(self) -> None:
        """Write a page to the disk, and change nothing. SQLite skips an update that does not
        change the row: so it is changed, and back."""
        self._execute("UPDATE store SET epoch = epoch || '-'")
        self._execute("UPDATE store SET epoch = substr(epoch, 1, length(epoch) - 1)")

    def fill(self, size: int) -> None:
        """Write so many bytes more, as a response whose time is over."""
        sql = "INSERT OR REPLACE INTO kept VALUES (?, 0, zeroblob(?))"
        self._execute(sql, _PROBE, size)

    def unfill(self) -> None:
        """Only when it is committed is it known that there was room."""
        self._execute("DELETE FROM kept WHERE id = ?", _PROBE)

    # ------------------------------------------------------------ leases

    def _missing(self, session: str) -> UnknownSession:
        self.verify()
        return UnknownSession(session)

    def _fenced(self, lease: Lease) -> tuple[int, int]:
        """Position and next event, if the lease still holds."""
        if lease.store != self.epoch:
            raise StoreLost(f"session {lease.session} was in another store")
        row = self._one(
            "SELECT owner, fence, position, next_event FROM sessions WHERE id = ?", lease.session
        )
        if row is None:
            raise self._missing(lease.session)
        owner, fence, position, next_event = row
        if owner == _NOBODY:
            raise SessionEnded(lease.session)
        if (owner, fence) != (lease.owner, lease.fence):
            if fence < lease.fence:
                raise SessionBehind(lease.session, f"fence {fence}, not {lease.fence}")
            raise StaleFence(lease.session, owner)
        return position, next_event

    # ------------------------------------------------------------ sessions

    def create(self, new: NewSession) -> Lease:
        row = self._one(
            "SELECT owner, secret, fence FROM sessions WHERE id = ? AND position = 0", new.id
        )
        if row is not None and row[:2] == (new.owner, new.secret):
            return Lease(new.id, new.owner, row[2], self.epoch)
        self.verify()
        now = self._in_ms(0)
        values = (new.id, new.tenant, new.secret, new.owner, now, 0, 0, now)
        try:
            self._execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)",
                *values,
                self._in_ms(new.hold_s),
                pack(new.state),
            )
        except sqlite3.IntegrityError as error:
            there = self._one("SELECT owner FROM sessions WHERE id = ?", new.id)
            ended = there == (_NOBODY,)
            raise (SessionEnded(new.id) if ended else SessionExists(new.id)) from error
        return Lease(new.id, new.owner, now, self.epoch)

    def find(self, session: str) -> Card | None:
        row = self._one(
            "SELECT tenant, secret, owner, fence, epoch, position, parked, created_ms, deadline_ms "
            "FROM sessions WHERE id = ? AND deadline_ms > ? AND owner <> ?",
            session,
            self._in_ms(0),
            _NOBODY,
        )
        if row is None:
            self.verify()
            return None
        tenant, secret, owner, fence, epoch, position, parked, created_ms, deadline_ms = row
        return Card(
            id=session,
            tenant=tenant,
            secret=secret,
            owner=owner,
            fence=fence,
            epoch=epoch,
            position=position,
            parked=bool(parked),
            created_ms=created_ms,
            deadline_ms=deadline_ms,
        )

    def load(self, session: str) -> Snapshot | None:
        card = self.find(session)
        if card is None:
            return None
        row = self._one("SELECT state, next_event FROM sessions WHERE id = ?", session)
        assert row is not None, "a card has a session"
        log = self._execute("SELECT packed FROM entries WHERE session = ? ORDER BY n", session)
        events = self._execute("SELECT packed FROM events WHERE session = ? ORDER BY n", session)
        bodies = tuple(unpack(packed) for (packed,) in events)
        return Snapshot(
            card=card,
            state=unpack(row[0]),
            log=tuple(unpack_entry(packed) for (packed,) in log),
            answers=tuple(self._answers(session)),
            events=Events(row[1] - len(bodies), bodies),
        )

    def _answers(self, session: str) -> Iterator[Answer]:
        rows = self._execute("SELECT id, begun FROM answers WHERE session = ? ORDER BY id", session)
        for answer, begun in rows.fetchall():
            said = self._execute(
                "SELECT first, ids FROM said WHERE session = ? AND answer = ?", session, answer
            )
            yield Answer(msgspec.msgpack.decode(begun, type=Begun), join_ids(said.fetchall()))

    def claim(
        self, session: str, owner: str, hold_s: float, seen: int | None, secret: bytes | None
    ) -> Lease:
        row = self._one(
            "UPDATE sessions SET owner = ?, fence = max(fence + 1, ?), parked = 0, "
            "deadline_ms = ?, secret = coalesce(?, secret) WHERE id = ? AND deadline_ms > ? "
            "AND owner <> ? AND fence = coalesce(?, fence) RETURNING fence",
            owner,
            self._in_ms(0),
            self._in_ms(hold_s),
            secret,
            session,
            self._in_ms(0),
            _NOBODY,
            seen,
        )
        if row is None:
            card = self.find(session)
            raise self._missing(session) if card is None else StaleFence(session, card.owner)
        return Lease(session, owner, row[0], self.epoch)

    def confirm(self, lease: Lease) -> None:
        self._fenced(lease)

    def hold(self, lease: Lease, for_s: float, parked: bool) -> None:
        self._fenced(lease)
        self._execute(
            "UPDATE sessions SET deadline_ms = ?, parked = ? WHERE id = ?",
            self._in_ms(for_s),
            parked,
            lease.session,
        )

    def close(self, lease: Lease) -> None:
        try:
            self._fenced(lease)
        except (UnknownSession, SessionEnded):
            return
        self._put_mark(lease.session, lease.fence)

    def end(self, session: str) -> int:
        card = self.find(session)
        if card is None:
            raise UnknownSession(session)
        self._put_mark(session, card.fence + 1)
        return card.fence + 1

    def _put_mark(self, session: str, fence: int) -> None:
        """All that is left of a session is that it was ended."""
        self._execute("DELETE FROM sessions WHERE id = ?", session)
        now, until = self._in_ms(0), self._in_ms(keys.ENDED_S)
        values = (session, "", b"", _NOBODY, fence, 0, 0, now, until, b"")
        self._execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)", *values
        )

    def sweep(self, limit: int) -> Swept:
        now = self._in_ms(0)
        self._execute("DELETE FROM kept WHERE deadline_ms <= ?", now)
        rows = self._execute(
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE deadline_ms <= ? "
            "ORDER BY deadline_ms LIMIT ?) RETURNING id, owner",
            now,
            limit,
        )
        gone = rows.fetchall()
        return Swept(len(gone), [session for session, owner in gone if owner != _NOBODY])

    # ------------------------------------------------------------ writing

    def write(self, lease: Lease, change: Change) -> Written | Repeated:
        position, next_event = self._fenced(lease)
        if change.once is not None and change.once.key not in change.undone:
            before = self._before(lease.session, change.once)
            if before is not None:
                return before
        if change.at is not None and change.at > position:
            raise SessionBehind(lease.session, f"{position} entries, not {change.at}")
        if change.events is not None and change.events.first > next_event:
            what = f"{next_event} events, not {change.events.first}"
            raise SessionBehind(lease.session, what)
        if change.at is not None:
            position = self._put_entries(lease.session, change.at, change.entries)
        if change.events is not None:
            next_event = self._put_events(lease.session, change.events)
        for key in change.undone:
            self._undo(lease.session, key)
        for once in change.again:
            self._undo(lease.session, once.key)
        asked = change.again if change.once is None else (*change.again, change.once)
        if asked:
            self._remember(lease.session, asked)
        self._put_answers(lease.session, change)
        self._execute(
            "UPDATE sessions SET position = ?, next_event = ?, epoch = coalesce(?, epoch), "
            "state = coalesce(?, state) WHERE id = ?",
            position,
            next_event,
            change.epoch,
            None if change.state is None else pack(change.state),
            lease.session,
        )
        return Written(position, next_event)

    def repeated(self, lease: Lease, once: Once) -> bytes | None:
        self._fenced(lease)
        before = self._before(lease.session, once)
        return None if before is None else before.result

    def _before(self, session: str, once: Once) -> Repeated | None:
        row = self._one(
            "SELECT digest, result FROM once WHERE session = ? AND key = ?",
            session,
            digest(once.key.encode()),
        )
        if row is None:
            return None
        if row[0] != digest(once.content):
            raise Conflict(once.key)
        return Repeated(row[1])

    def _remember(self, session: str, asked: tuple[Once, ...]) -> None:
        assert all(len(once.result) <= keys.ONCE_RESULT_BYTES_MAX for once in asked), "a few ids"
        self._db.executemany(
            "INSERT INTO once (session, key, digest, result) VALUES (?, ?, ?, ?)",
            [(session, digest(o.key.encode()), digest(o.content), o.result) for o in asked],
        )
        row = self._one(
            "UPDATE sessions SET once_bytes = once_bytes + ? WHERE id = ? RETURNING once_bytes",
            sum(_ONCE_RECORD_BYTES + len(once.result) for once in asked),
            session,
        )
        assert row is not None, "fenced"
        if row[0] > keys.ONCE_BYTES_MAX:
            self._forget(session, row[0])

    def _undo(self, session: str, key: str) -> None:
        row = self._one(
            "DELETE FROM once WHERE session = ? AND key = ? RETURNING result",
            session,
            digest(key.encode()),
        )
        if row is not None:
            self._execute(
                "UPDATE sessions SET once_bytes = once_bytes - ? WHERE id = ?",
                _ONCE_RECORD_BYTES + len(row[0]),
                session,
            )

    def _forget(self, session: str, kept: int) -> None:
        """The oldest eighth of the window."""
        rows = self._execute("SELECT n, result FROM once WHERE session = ? ORDER BY n", session)
        last = 0
        for n, result in rows:
            if kept <= keys.ONCE_BYTES_MAX * 7 // 8:
                break
            kept -= _ONCE_RECORD_BYTES + len(result)
            last = n
        self._execute("DELETE FROM once WHERE session = ? AND n <= ?", session, last)
        self._execute("UPDATE sessions SET once_bytes = ? WHERE id = ?", kept, session)

    def _put_entries(self, session: str, at: int, entries: tuple[Entry, ...]) -> int:
        self._execute("DELETE FROM entries WHERE session = ? AND n >= ?", session, at)
        rows = [(session, n, pack_entry(entry)) for n, entry in enumerate(entries, at)]
        self._db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        return at + len(entries)

    def _put_events(self, session: str, events: Events) -> int:
        self._execute("DELETE FROM events WHERE session = ? AND n >= ?", session, events.first)
        rows = [(session, n, pack(body)) for n, body in enumerate(events.bodies, events.first)]
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        self._drop_old_events(session)
        return events.next

    def _drop_old_events(self, session: str) -> None:
        sql = "SELECT count(*), sum(length(packed)) FROM events WHERE session = ?"
        found = self._one(sql, session)
        assert found is not None, "it counts"
        if found[0] <= keys.EVENTS_MAX and (found[1] or 0) <= keys.EVENTS_BYTES_MAX:
            return
        sql = "SELECT n, length(packed) FROM events WHERE session = ? ORDER BY n DESC"
        weight = 0
        for count, (n, size) in enumerate(self._execute(sql, session), 1):
            weight += size
            if count > keys.EVENTS_MAX or weight > keys.EVENTS_BYTES_MAX:
                self._execute("DELETE FROM events WHERE session = ? AND n <= ?", session, n)
                return

    def _put_answers(self, session: str, change: Change) -> None:
        for ended in change.ends:
            self._execute("DELETE FROM answers WHERE session = ? AND id = ?", session, ended)
        for begun in change.begins:
            values = (session, begun.id, msgspec.msgpack.encode(begun))
            self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, 0)", *values)

    def journal(self, lease: Lease, answer: str, first: int, ids: tuple[int, ...]) -> int:
        self._fenced(lease)
        row = self._one(
            "SELECT said FROM answers WHERE session = ? AND id = ?", lease.session, answer
        )
        if row is None:
            raise UnknownAnswer(answer)
        if first > row[0]:
            raise SessionBehind(lease.session, f"{row[0]} ids of {answer}, not {first}")
        # What was said stays: of a batch that comes again only what is new is put behind it.
        new = ids[row[0] - first :]
        if not new:
            return row[0]
        values = (lease.session, answer, row[0], pack_ids(new))
        self._execute("INSERT INTO said VALUES (?, ?, ?, ?)", *values)
        said = row[0] + len(new)
        sql = "UPDATE answers SET said = ? WHERE session = ? AND id = ?"
        self._execute(sql, said, lease.session, answer)
        return said

    def journal_all(self, spoken: Sequence[Spoken]) -> list[int | None]:
        return [self._journaled(one) for one in spoken]

    def _journaled(self, spoken: Spoken) -> int | None:
        try:
            return self.journal(*spoken)
        except StoreError:
            return None

    # ------------------------------------------------------------ responses

    def keep(self, kept: Kept, for_s: float) -> None:
        values = (kept.id, self._in_ms(for_s), pack_kept(kept))
        self._execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", *values)

    def kept(self, response: str) -> Kept | None:
        sql = "SELECT packed FROM kept WHERE id = ? AND deadline_ms > ?"
        row = self._one(sql, response, self._in_ms(0))
        if row is None:
            self.verify()
            return None
        return unpack_kept(response, row[0])

"""The SQLite file: its epoch, how it is opened, and whether it is still at its path."""

import logging
import os
import sqlite3
from pathlib import Path

from continuo.realtime.store import keys
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.sqlite.migrations import make_epoch, migrate, transaction

log = logging.getLogger(__name__)


def connect(file: Path | None, durability: Durability) -> sqlite3.Connection:
    """Open the file, or create it with mode 0600, because it holds user text. Migrates a file of
    an older layout."""
    # Closing any descriptor of a file drops all locks that the process holds on it, so a file that
    # exists, and may be open here, is left to SQLite.
    if file is not None and not file.exists():
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
    migrate(db)
    return db


Inode = tuple[int, int]
"""Device and inode number of a file."""
Inodes = tuple[Inode | None, ...]


class SqliteFile:
    """The open file, which may be deleted or replaced under a running server. SQLite then keeps
    using the file that it opened, which no process will ever open again."""

    def __init__(self, path: Path | None, durability: Durability) -> None:
        """Open the file at `path` (None: in memory). Raises OSError, sqlite3.Error."""
        self._path = None if path is None else path.absolute()
        self._durability: Durability = durability
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db = connect(self._path, durability)
        self._paths = self._find_paths()
        self._inodes: Inodes | None = self._stat_inodes()

    def is_in_place(self) -> bool:
        """Whether the open file is still at its path, where the next start of the server will find
        its data."""
        return self._stat_inodes() == self._inodes

    def reopen(self) -> bool:
        """Open the file that is at the path now, or create one, after the old one was replaced.

        Gives the file a new epoch, which makes leases of the old file void, and returns False. If
        only the write-ahead log was deleted, no data is lost: the file keeps its epoch, and the
        call returns True. Raises OSError, sqlite3.Error; the call can then be repeated.
        """
        is_complete = self._close_replaced()
        self.db = connect(self._path, self._durability)
        self._paths = self._find_paths()
        if not is_complete:
            with transaction(self.db):
                self.db.execute("DELETE FROM store")
                make_epoch(self.db)
        self._inodes = self._stat_inodes()
        return is_complete

    def _close_replaced(self) -> bool:
        """Apply the write-ahead log to the old file and close it. A log that could not be applied
        is deleted, because it must not be applied to another file. Returns whether the old file is
        still at the path and has all its data."""
        if self._inodes is None:  # closed by an earlier call, which then failed
            return self._close(is_complete=False)
        (file, log_file), inodes = self._paths, self._inodes
        is_replaced = _stat_inode(file) != inodes[0]
        is_checkpointed = (is_replaced or _stat_inode(log_file) is None) and self._checkpoint()
        if is_checkpointed and not is_replaced:
            log.warning("%s was deleted; nothing is lost", log_file)
            return self._close(is_complete=True)
        if is_replaced and not is_checkpointed and _stat_inode(log_file) == inodes[1]:
            os.unlink(log_file)
        log.warning(
            "%s was deleted or replaced. It had %s sessions: those that this process has open are "
            "written again, into the file that is there now. Sessions that only the store had, "
            "and stored responses, are lost unless they are in that file",
            file,
            self._count_sessions(),
        )
        return self._close(is_complete=False)

    def _close(self, *, is_complete: bool) -> bool:
        self._inodes = None
        self.db.close()
        return is_complete

    def _checkpoint(self) -> bool:
        """Apply the write-ahead log to the file. Returns whether all of it was applied."""
        try:
            busy, _, _ = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy

    def _count_sessions(self) -> str:
        try:
            (count,) = self.db.execute("SELECT count(*) FROM sessions WHERE owner <> ''").fetchone()
        except sqlite3.Error:
            return "an unknown number of"
        return f"{count:,}"

    def _find_paths(self) -> tuple[str, ...]:
        """Return the paths of the database and its write-ahead log; none if in memory. SQLite
        follows a symbolic link to the database, and keeps the log beside the link's target."""
        if self._path is None:
            return ()
        real = self.db.execute("PRAGMA database_list").fetchone()[2]
        return str(self._path), f"{real}-wal"

    def _stat_inodes(self) -> Inodes:
        return tuple(map(_stat_inode, self._paths))


def _stat_inode(path: str) -> Inode | None:
    """Return the inode of a file, or None if the file does not exist or cannot be examined."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def read_epoch(db: sqlite3.Connection) -> str | None:
    row = db.execute("SELECT epoch FROM store").fetchone()
    return None if row is None else row[0]

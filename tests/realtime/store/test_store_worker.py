"""Calls that share a transaction."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from continuo.realtime.store.errors import StoreReplaced, StoreUnavailable
from continuo.realtime.store.sqlite.file import SqliteFile
from continuo.realtime.store.sqlite.worker import Worker


class Notes:
    """A table; `pause` holds the thread until `go_on`, so that what is asked meanwhile is one
    group."""

    def __init__(self, file: Path) -> None:
        opened = SqliteFile(file, "normal")
        self.db = opened.db
        self.db.execute("CREATE TABLE notes (n INTEGER)")
        self.commits = 0
        self.db.set_trace_callback(self._count)
        self.worker = Worker(opened)
        self._going = threading.Event()

    def _count(self, sql: str) -> None:
        self.commits += sql == "COMMIT"

    def pause(self) -> "asyncio.Task[bool]":
        return asyncio.create_task(self.worker.run(self._going.wait))

    def go_on(self) -> None:
        self._going.set()

    def note(self, n: int) -> int:
        self.db.execute("INSERT INTO notes VALUES (?)", (n,))
        if n < 0:
            raise ValueError(n)
        if n > 1000:
            raise StoreReplaced(str(n))
        return n

    def notes(self) -> list[int]:
        return [n for (n,) in self.db.execute("SELECT n FROM notes ORDER BY n")]


async def test_what_waits_shares_a_transaction_and_fails_alone(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "store.db")
    paused = notes.pause()
    await asyncio.sleep(0.05)
    asked = [notes.worker.run(notes.note, n) for n in (1, -2, 3, 1004, 5)]
    answers = asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(0)
    notes.go_on()
    one, two, three, four, five = await answers
    assert (one, three, five) == (1, 3, 5)
    assert isinstance(two, ValueError)
    assert isinstance(four, StoreReplaced)
    assert await paused
    assert notes.commits == 2, "of the pause, and of the five"
    assert await notes.worker.run(notes.notes) == [1, 3, 5, 1004]
    await notes.worker.aclose()
    with pytest.raises(StoreUnavailable):
        await notes.worker.run(notes.notes)


async def test_where_the_file_fails_nothing_of_the_group_is_kept(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "store.db")

    def broken() -> None:
        notes.db.rollback()  # as SQLite does by itself then
        raise sqlite3.OperationalError("database or disk is full")

    paused = notes.pause()
    await asyncio.sleep(0.05)
    asked = [notes.worker.run(notes.note, 1), notes.worker.run(broken)]
    answers = asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(0)
    notes.go_on()
    assert all(isinstance(answer, StoreUnavailable) for answer in await answers)
    assert await paused
    assert await notes.worker.run(notes.notes) == []
    await notes.worker.aclose()


async def test_what_was_asked_before_the_end_is_done(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "store.db")
    asked = [asyncio.create_task(notes.worker.run(notes.note, n)) for n in range(500)]
    await asyncio.sleep(0)
    await notes.worker.aclose()
    assert [await task for task in asked] == list(range(500))
    other = sqlite3.connect(tmp_path / "store.db")
    assert other.execute("SELECT count(*) FROM notes").fetchone() == (500,)
    other.close()

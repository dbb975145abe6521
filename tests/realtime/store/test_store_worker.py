"""Tests of the SQLite worker: waiting calls share a transaction."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from continuo.realtime.store.errors import StoreReplaced, StoreUnavailable
from continuo.realtime.store.sqlite.file import SqliteFile
from continuo.realtime.store.sqlite.worker import Worker


class NotesTable:
    """A table with a worker.

    `block` holds the thread of the worker until `unblock`, so that calls made in between form one
    group.
    """

    def __init__(self, file: Path) -> None:
        opened = SqliteFile(file, "normal")
        self.db = opened.db
        self.db.execute("CREATE TABLE notes (n INTEGER)")
        self.commits = 0
        self.db.set_trace_callback(self._count)
        self.worker = Worker(opened)
        self._unblocked = threading.Event()

    def _count(self, sql: str) -> None:
        self.commits += sql == "COMMIT"

    def block(self) -> "asyncio.Task[bool]":
        return asyncio.create_task(self.worker.run(self._unblocked.wait))

    def unblock(self) -> None:
        self._unblocked.set()

    def insert(self, n: int) -> int:
        self.db.execute("INSERT INTO notes VALUES (?)", (n,))
        if n < 0:
            raise ValueError(n)
        if n > 1000:
            raise StoreReplaced(str(n))
        return n

    def numbers(self) -> list[int]:
        return [n for (n,) in self.db.execute("SELECT n FROM notes ORDER BY n")]


async def test_waiting_calls_share_a_transaction_and_fail_separately(tmp_path: Path) -> None:
    table = NotesTable(tmp_path / "store.db")
    blocked = table.block()
    await asyncio.sleep(0.05)
    calls = [table.worker.run(table.insert, n) for n in (1, -2, 3, 1004, 5)]
    results = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    table.unblock()
    one, two, three, four, five = await results
    assert (one, three, five) == (1, 3, 5)
    assert isinstance(two, ValueError)
    assert isinstance(four, StoreReplaced)
    assert await blocked
    assert table.commits == 2, "one for `block`, one for the group of five"
    assert await table.worker.run(table.numbers) == [1, 3, 5, 1004]
    await table.worker.aclose()
    with pytest.raises(StoreUnavailable):
        await table.worker.run(table.numbers)


async def test_failure_of_the_file_rolls_back_the_whole_group(tmp_path: Path) -> None:
    table = NotesTable(tmp_path / "store.db")

    def fail() -> None:
        table.db.rollback()  # as SQLite does on its own when the disk is full
        raise sqlite3.OperationalError("database or disk is full")

    blocked = table.block()
    await asyncio.sleep(0.05)
    calls = [table.worker.run(table.insert, 1), table.worker.run(fail)]
    results = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    table.unblock()
    assert all(isinstance(result, StoreUnavailable) for result in await results)
    assert await blocked
    assert await table.worker.run(table.numbers) == []
    await table.worker.aclose()


async def test_calls_made_before_the_close_are_executed(tmp_path: Path) -> None:
    table = NotesTable(tmp_path / "store.db")
    calls = [asyncio.create_task(table.worker.run(table.insert, n)) for n in range(500)]
    await asyncio.sleep(0)
    await table.worker.aclose()
    assert [await task for task in calls] == list(range(500))
    other = sqlite3.connect(tmp_path / "store.db")
    assert other.execute("SELECT count(*) FROM notes").fetchone() == (500,)
    other.close()

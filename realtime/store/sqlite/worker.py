"""Worker: the thread that has the SQLite file. What waits for it is done in one transaction, in the
order it came, so that a thousand small writes a second cost a few commits.

A call takes effect as a whole or not at all, whatever becomes of the others; its caller hears of it
when all of them are committed, to the file that is at its path.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from continuo.realtime.store.errors import StoreLost, StoreUnavailable
from continuo.realtime.store.sqlite.file import StoreFile, transaction

GROUP_MAX = 256
"""Calls in one transaction."""
_FILES_MAX = 3
"""Files that a group of calls is tried on, each having replaced the one before meanwhile."""

T = TypeVar("T")


class Call(NamedTuple):
    act: Callable[..., Any]
    args: tuple[Any, ...]
    heard: "asyncio.Future[Any]"


class Result(NamedTuple):
    heard: "asyncio.Future[Any]"
    value: Any
    error: Exception | None = None

    def tell(self) -> None:
        if self.heard.done():
            return
        if self.error is None:
            self.heard.set_result(self.value)
        else:
            self.heard.set_exception(self.error)


class Worker:
    def __init__(self, file: StoreFile, reopened: Callable[[], None] = lambda: None) -> None:
        """`reopened` is called, on the thread, when `file` has another connection and epoch."""
        self._file = file
        self._reopened = reopened
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._closed = self._loop.create_future()
        Thread(target=self._work, name="store", daemon=True).start()

    async def run(self, act: Callable[..., T], *args: Any) -> T:
        """Raises what it raises, StoreUnavailable where the file cannot be written."""
        if self._closed.done():
            raise StoreUnavailable("the store is closed")
        heard: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(Call(act, args, heard))
        return await heard

    async def aclose(self) -> None:
        """What was asked for before is done."""
        self._calls.put(None)
        await self._closed

    # ---- on the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        open = True
        while open:
            group = self._group()
            open = group[-1] is not None
            results = self._do([call for call in group if call is not None])
            self._tell(_tell_all, results)
        self._db.close()
        self._tell(self._closed.set_result, None)

    @property
    def _db(self) -> sqlite3.Connection:
        return self._file.db

    def _group(self) -> list[Call | None]:
        """One call at least. None, the last: there will be no more."""
        group = [self._calls.get()]
        try:
            while len(group) < GROUP_MAX and group[-1] is not None:
                group.append(self._calls.get_nowait())
        except Empty:
            pass
        return group

    def _do(self, calls: list[Call]) -> list[Result]:
        """Done once more if the file was deleted or replaced: in the one that is there now the same
        calls are told that the store is another one."""
        if not calls:
            return []
        try:
            for _ in range(_FILES_MAX):
                results = self._transact(calls)
                if self._file.in_place():
                    return results
                whole = self._file.reopen()
                self._reopened()
                if whole:
                    return results
        except (OSError, sqlite3.Error) as error:
            return _all_refused(calls, f"the file was deleted or replaced, and now: {error}", error)
        return _all_refused(calls, "the file is replaced again and again")

    def _transact(self, calls: list[Call]) -> list[Result]:
        try:
            with transaction(self._db):
                return [self._call(call) for call in calls]
        except sqlite3.Error as error:
            return _all_refused(calls, str(error), error)

    def _call(self, call: Call) -> Result:
        """Raises sqlite3.Error where the whole transaction is lost (the disk is full, say)."""
        self._db.execute("SAVEPOINT call")
        try:
            result = Result(call.heard, call.act(*call.args))
        except sqlite3.Error as error:
            if not self._db.in_transaction:
                raise
            self._db.execute("ROLLBACK TO call")
            blame = _unavailable(str(error), error) if _of_the_file(error) else error
            result = Result(call.heard, None, blame)
        except StoreLost as error:  # what it has written stays
            result = Result(call.heard, None, error)
        except Exception as error:
            self._db.execute("ROLLBACK TO call")
            result = Result(call.heard, None, error)
        self._db.execute("RELEASE call")
        return result

    def _tell(self, act: Callable[[Any], object], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(act, value)


def _tell_all(results: list[Result]) -> None:
    for result in results:
        result.tell()


def _all_refused(calls: list[Call], cause: str, error: Exception | None = None) -> list[Result]:
    return [Result(call.heard, None, _unavailable(cause, error)) for call in calls]


def _of_the_file(error: sqlite3.Error) -> bool:
    """Whether the file fails (full, locked, malformed), rather than this one call."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _unavailable(cause: str, error: Exception | None) -> StoreUnavailable:
    unavailable = StoreUnavailable(f"SQLite: {cause}")
    unavailable.__cause__ = error
    return unavailable

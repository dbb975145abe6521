"""Worker: the thread that owns the SQLite file. All calls that wait for the thread run in one
transaction, in order of arrival, so that a thousand small writes a second cost a few commits.

A call takes effect as a whole or not at all, independently of the other calls; it returns when the
transaction is committed and the file is verified to be still at its path.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from continuo.realtime.store.errors import StoreError, StoreReplaced, StoreUnavailable
from continuo.realtime.store.sqlite.file import SqliteFile
from continuo.realtime.store.sqlite.migrations import transaction

GROUP_MAX = 256
"""Maximum number of calls in one transaction."""
_REOPEN_ATTEMPTS_MAX = 3
"""Maximum number of attempts to run a group of calls while the file is replaced again and again."""

T = TypeVar("T")
_ErrorT = TypeVar("_ErrorT", bound=Exception)


class PendingCall(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: "asyncio.Future[Any]"


class CallResult(NamedTuple):
    future: "asyncio.Future[Any]"
    value: Any
    error: Exception | None = None

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Worker:
    def __init__(self, file: SqliteFile, on_reopened: Callable[[], None] = lambda: None) -> None:
        """`on_reopened` is called on the worker thread when `file` has been opened again."""
        self._file = file
        self._on_reopened = on_reopened
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[PendingCall | None] = SimpleQueue()
        self._closed = self._loop.create_future()
        Thread(target=self._run_thread, name="store", daemon=True).start()

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a call on the thread. Raises what the call raises, and StoreUnavailable if the file
        cannot be written."""
        if self._closed.done():
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(PendingCall(function, args, future))
        try:
            return await future
        finally:
            del future  # whose error keeps this frame

    async def aclose(self) -> None:
        """Finish the calls made so far, then close the file."""
        self._calls.put(None)
        await self._closed

    # ---- on the thread ----------------------------------------------------------------------

    def _run_thread(self) -> None:
        is_open = True
        while is_open:
            group = self._next_group()
            is_open = group[-1] is not None
            results = self._run_group([call for call in group if call is not None])
            self._post_to_loop(_resolve_all, results)
        self._db.close()
        self._post_to_loop(self._closed.set_result, None)

    @property
    def _db(self) -> sqlite3.Connection:
        return self._file.db

    def _next_group(self) -> list[PendingCall | None]:
        """Wait for calls, and return at least one. None as the last means that the worker must
        stop."""
        group = [self._calls.get()]
        try:
            while len(group) < GROUP_MAX and group[-1] is not None:
                group.append(self._calls.get_nowait())
        except Empty:
            pass
        return group

    def _run_group(self, calls: list[PendingCall]) -> list[CallResult]:
        """Run calls in one transaction. If the file was deleted or replaced meanwhile, run them
        again on the file now at its path, where calls with a lease of the old file fail."""
        if not calls:
            return []
        try:
            for _ in range(_REOPEN_ATTEMPTS_MAX):
                results = self._transact(calls)
                if self._file.is_in_place():
                    return results
                is_complete = self._file.reopen()
                self._on_reopened()
                if is_complete:
                    return results
        except (OSError, sqlite3.Error) as error:
            return _fail_all(
                calls, f"the file was deleted or replaced, and the new one fails: {error}", error
            )
        return _fail_all(calls, "the file keeps being replaced")

    def _transact(self, calls: list[PendingCall]) -> list[CallResult]:
        try:
            with transaction(self._db):
                return [self._run_call(call) for call in calls]
        except sqlite3.Error as error:
            return _fail_all(calls, str(error), error)

    def _run_call(self, call: PendingCall) -> CallResult:
        """Run one call within a savepoint. Raises sqlite3.Error if the whole transaction is lost
        (the disk is full, say)."""
        self._db.execute("SAVEPOINT call")
        try:
            result = CallResult(call.future, call.function(*call.args))
        except sqlite3.Error as error:
            if not self._db.in_transaction:
                raise
            self._db.execute("ROLLBACK TO call")
            cause = _make_unavailable(str(error), error) if _is_file_error(error) else error
            result = CallResult(call.future, None, cause)
        except StoreReplaced as error:  # the writes of this call are kept
            result = CallResult(call.future, None, _without_frames(error))
        except Exception as error:  # noqa: BLE001 - raised to the caller by the future of its call
            self._db.execute("ROLLBACK TO call")
            if isinstance(error, StoreError):
                error = _without_frames(error)
            result = CallResult(call.future, None, error)
        self._db.execute("RELEASE call")
        return result

    def _post_to_loop(self, callback: Callable[[Any], object], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, value)


def _resolve_all(results: list[CallResult]) -> None:
    for result in results:
        result.resolve()


def _fail_all(
    calls: list[PendingCall], cause: str, error: Exception | None = None
) -> list[CallResult]:
    return [CallResult(call.future, None, _make_unavailable(cause, error)) for call in calls]


def _is_file_error(error: sqlite3.Error) -> bool:
    """Whether the error concerns the file (full, locked, malformed), not only this call."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _make_unavailable(cause: str, error: Exception | None) -> StoreUnavailable:
    """Make the error of a failed call. Names the code of SQLite, whose text "disk I/O error" stands
    for thirty of them."""
    if isinstance(error, sqlite3.Error) and (name := getattr(error, "sqlite_errorname", None)):
        cause = f"{cause} ({name})"
    unavailable = StoreUnavailable(f"SQLite: {cause}")
    unavailable.__cause__ = error and _without_frames(error)
    return unavailable


def _without_frames(error: _ErrorT) -> _ErrorT:
    """Return an expected error without the frames of this thread: they refer to the futures of the
    calls, and one of these to the error."""
    return error.with_traceback(None)

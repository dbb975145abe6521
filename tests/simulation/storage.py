"""Simulated store server: the real SQLite tables behind a network that delays, reorders and loses
calls, with a failover to a replica."""

from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from continuo.realtime.store import StoreReplaced, StoreUnavailable, keys
from continuo.realtime.store.sqlite.file import connect, transaction
from continuo.realtime.store.sqlite.store import SqliteStore
from continuo.realtime.store.sqlite.tables import Tables
from tests.simulation.replica import Fact, Replica, read_facts
from tests.simulation.virtual import CURRENT_PROCESS, VirtualLoop

T = TypeVar("T")
_SERVER_CONTEXT = Context()
"""Context of the store server, which is outside all processes that can be killed."""


class SimulatedStore:
    """Server of the store, with faults.

    The server can refuse all calls, hold them back until it is resumed, or lose or delay a share of
    the calls and replies.
    """

    def __init__(self, loop: VirtualLoop, rng: Random, trace: Callable[[str], None]) -> None:
        self._db = connect(None, "normal")
        self._loop = loop
        self._rng = rng
        self._trace = trace
        self.tables = Tables(self._db, lambda: loop.now + 1_800_000_000.0)
        self.is_unavailable = False
        self.is_paused = False
        self.loss_rate = 0.0
        self._waiting: list[Callable[[], None]] = []
        self.replica = Replica(self._db)
        self._servers = 1
        """Number of servers so far: calls in flight to an earlier server are lost."""

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def fail_over(self) -> bool:
        """Fail over to the replica. Returns False if that would lose a whole session."""
        done = self.replica.take_over()
        self._servers += done
        return done

    def read_facts(self) -> dict[Fact, str]:
        return read_facts(self._db)

    def execute(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in a transaction, like the store's thread in the product."""
        with transaction(self._db):
            self._db.execute("SAVEPOINT call")
            try:
                return call(*args)
            except StoreReplaced:
                raise
            except Exception:
                self._db.execute("ROLLBACK TO call")
                raise
            finally:
                self._db.execute("RELEASE call")

    async def call(self, call: Callable[..., T], *args: Any) -> T:
        """Send one call of a gateway. Raises StoreUnavailable after a timeout; whether the call is
        executed is unknown then."""
        loop, rng, process = self._loop, self._rng, CURRENT_PROCESS.get()
        assert process is not None, "no process in this context"
        reply, server = loop.create_future(), self._servers

        def resolve(value: Any, error: Exception | None) -> None:
            if not reply.done() and error is not None:
                reply.set_exception(error)
            elif not reply.done():
                reply.set_result(value)

        def refuse() -> None:
            resolve(None, StoreUnavailable("the store does not answer"))

        def arrive() -> None:
            if server != self._servers:
                return
            if self.is_paused:
                self._waiting.append(arrive)
                return
            value, error = None, None
            try:
                value = self.execute(call, *args)
            except Exception as raised:
                error = raised
            self._trace(f"{process.name} {call.__name__} {type(error).__name__}")
            if rng.random() >= self.loss_rate:
                loop.call_later(self._delay_s(), resolve, value, error, context=process.context)

        timer = loop.call_later(keys.TIMEOUT_S, refuse, context=process.context)
        if self.is_unavailable:
            loop.call_later(self._delay_s(), refuse, context=process.context)
        elif (lost := rng.random() < self.loss_rate) and rng.random() < 0.5:
            pass
        else:
            delay_s = rng.uniform(0.1, 4.0) if lost else 0.0
            loop.call_later(delay_s + self._delay_s(), arrive, context=_SERVER_CONTEXT)
        try:
            return await reply
        finally:
            timer.cancel()

    def _delay_s(self) -> float:
        return self._rng.uniform(0.0002, 0.004)


class SimulatedStoreClient(SqliteStore):
    """Store client of one gateway. Concurrent calls may be executed in any order."""

    def __init__(self, storage: SimulatedStore) -> None:
        self._tables = storage.tables
        self._ask = storage.call

    @property
    def is_shared(self) -> bool:
        return True

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await self._ask(call, *args)

    async def aclose(self) -> None:
        """Do nothing: the server is shared."""

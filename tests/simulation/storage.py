"""The store as a server of its own: the real tables, behind a network that delays calls, loses
them, does them late, and in another order; a replica may take its place."""

from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from continuo.realtime.store import StoreReplaced, StoreUnavailable, keys
from continuo.realtime.store.sqlite.file import connect, transaction
from continuo.realtime.store.sqlite.store import SqliteStore
from continuo.realtime.store.sqlite.tables import Tables
from tests.simulation.replica import Fact, Replica, facts
from tests.simulation.virtual import HERE, VirtualLoop

T = TypeVar("T")
_NOWHERE = Context()
"""Of what happens in no process that may die."""


class Storage:
    """The server. `away`: it refuses; `asleep`: it does what it was asked when it wakes; `shaky`:
    this share of calls, and of answers, is lost, or done seconds late."""

    def __init__(self, loop: VirtualLoop, chance: Random, told: Callable[[str], None]) -> None:
        self._db = connect(None, "normal")
        self._loop = loop
        self._chance = chance
        self._told = told
        self.tables = Tables(self._db, lambda: loop.now + 1_800_000_000.0)
        self.away = False
        self.asleep = False
        self.shaky = 0.0
        self._waiting: list[Callable[[], None]] = []
        self.replica = Replica(self._db)
        self._servers = 1
        """A call that is on its way to an earlier one is lost."""

    def wake(self) -> None:
        self.asleep = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def fail_over(self) -> bool:
        """To the replica, with what that has. False: it is not ready to."""
        done = self.replica.take_over()
        self._servers += done
        return done

    def facts(self) -> dict[Fact, str]:
        return facts(self._db)

    def do(self, act: Callable[..., T], *args: Any) -> T:
        """As the product's thread does it."""
        with transaction(self._db):
            self._db.execute("SAVEPOINT call")
            try:
                return act(*args)
            except StoreReplaced:
                raise
            except Exception:
                self._db.execute("ROLLBACK TO call")
                raise
            finally:
                self._db.execute("RELEASE call")

    async def ask(self, act: Callable[..., T], *args: Any) -> T:
        """One call of a gateway. Raises StoreUnavailable where it hears nothing in time; then it is
        not known what becomes of it."""
        loop, chance, here = self._loop, self._chance, HERE.get()
        assert here is not None, "a process asks"
        heard, server = loop.create_future(), self._servers

        def hear(value: Any, error: Exception | None) -> None:
            if not heard.done() and error is not None:
                heard.set_exception(error)
            elif not heard.done():
                heard.set_result(value)

        def refuse() -> None:
            hear(None, StoreUnavailable("the store does not answer"))

        def arrive() -> None:
            if server != self._servers:
                return
            if self.asleep:
                self._waiting.append(arrive)
                return
            value, error = None, None
            try:
                value = self.do(act, *args)
            except Exception as raised:
                error = raised
            self._told(f"{here.name} {act.__name__} {type(error).__name__}")
            if chance.random() >= self.shaky:
                loop.call_later(self._delay_s(), hear, value, error, context=here.context)

        timer = loop.call_later(keys.TIMEOUT_S, refuse, context=here.context)
        if self.away:
            loop.call_later(self._delay_s(), refuse, context=here.context)
        elif (lost := chance.random() < self.shaky) and chance.random() < 0.5:
            pass
        else:
            late_s = chance.uniform(0.1, 4.0) if lost else 0.0
            loop.call_later(late_s + self._delay_s(), arrive, context=_NOWHERE)
        try:
            return await heard
        finally:
            timer.cancel()

    def _delay_s(self) -> float:
        return self._chance.uniform(0.0002, 0.004)


class Handle(SqliteStore):
    """The store as one gateway has it. Calls are not in order among each other."""

    def __init__(self, storage: Storage) -> None:
        self._tables = storage.tables
        self._ask = storage.ask

    @property
    def is_shared(self) -> bool:
        return True

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await self._ask(call, *args)

    async def aclose(self) -> None:
        """The server stays."""

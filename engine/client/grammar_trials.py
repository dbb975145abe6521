"""Trials of the grammars of clients, in processes that the kernel limits and a cancel kills.

    find_problem ── cache ──▶ queue, tenant by tenant ──▶ a process of engine/text/grammar_trial

A tenant has one trial at a time, and tenants take turns: a grammar that uses up its limits delays
other grammars of its tenant alone.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from continuo.engine.errors import Busy
from continuo.engine.resident_cache import CacheSize, ResidentCache, cache_group
from continuo.engine.sampling import Grammar
from continuo.engine.text import SchemaError, build_trial_source, compute_key, grammar_trial

PROCESSES = 2
"""Processes of trials. Each starts when it is first needed."""
WAITING_MAX = 256
"""Maximum number of trials of one tenant that wait; more are refused."""
_CACHE_BYTES_MAX = 1024 * 1024
_ATTEMPTS = 2
"""How often a trial is begun whose process ends without an answer."""


class GrammarTrials(Protocol):
    """Tries the grammars of clients before any part of the server compiles them."""

    @property
    def size(self) -> CacheSize:
        """Size of the cache of problems."""
        ...

    async def find_problem(self, grammar: Grammar) -> str | None:
        """Explain in one line why a grammar cannot be enforced. Returns None if it can. Raises
        Busy."""
        ...

    async def stop(self) -> None:
        """End all processes. Trials that run or wait raise Busy."""
        ...


class TrialProcesses:
    """Trials in processes of their own, in turns of the tenants (`cache_group`)."""

    def __init__(self) -> None:
        self._processes = [_TrialProcess() for _ in range(PROCESSES)]
        self._turns = _TenantTurns(self._processes)
        self._problems: ResidentCache[str, str] = ResidentCache(_CACHE_BYTES_MAX)
        """Problem of each grammar that was tried, by its key; empty if it has none."""

    @property
    def size(self) -> CacheSize:
        return self._problems.size

    async def find_problem(self, grammar: Grammar) -> str | None:
        key = compute_key(grammar)
        problem = self._problems.get(key)
        if problem is None:
            problem = await self._try(key, grammar)
            self._problems.add(key, problem, 500 + sys.getsizeof(problem))
        return problem or None

    async def _try(self, key: str, grammar: Grammar) -> str:
        try:
            source = build_trial_source(grammar)
        except SchemaError as error:
            return str(error)
        async with self._turns.take(cache_group.get()) as process:
            known = self._problems.get(key)  # tried while this one waited
            return await process.find_problem(source) if known is None else known

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))


class _TrialProcess:
    """A process that tries one grammar at a time; started when it is needed, and again after it was
    killed."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_stopped = False

    async def find_problem(self, source: str) -> str:
        """Try a grammar. A cancel kills the process, and with it the trial. Raises Busy if the
        process ends before it has replied."""
        attempts = 0
        while not self._is_stopped and attempts < _ATTEMPTS:
            try:
                reply = await self._ask(source)
            except BaseException:
                self.kill()
                raise
            if reply:
                problem: str = json.loads(reply)
                return problem
            self.kill()
            attempts += 1
        raise Busy("the grammar could not be tried; try again")

    async def _ask(self, source: str) -> bytes:
        """Return the line with which the process replies; empty if it ends without."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", grammar_trial.__file__),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=os.environ | {"RUST_BACKTRACE": "0"},  # which takes seconds of a trial's time
                start_new_session=True,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(ConnectionError):
            stdin.write(json.dumps(source).encode() + b"\n")
            await stdin.drain()
        return await stdout.readline()

    def kill(self) -> None:
        """Kill the process and the trial that it has forked."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        self._is_stopped = True
        process = self._process
        self.kill()
        if process is not None:
            await process.wait()


class _TenantTurns:
    """Free processes, given to the tenants that wait for one by turns; one to each at a time."""

    def __init__(self, processes: Sequence[_TrialProcess]) -> None:
        self._free = list(processes)
        self._waiting: dict[str, deque[asyncio.Future[_TrialProcess]]] = {}
        """Trials that wait, by tenant; the tenant whose turn is next is the first."""
        self._served: set[str] = set()
        """Tenants with a process."""

    @contextlib.asynccontextmanager
    async def take(self, tenant: str) -> AsyncGenerator[_TrialProcess]:
        """Wait for a process, and give it back on exit. Raises Busy."""
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} other grammars wait to be tried; try again")
        turn: asyncio.Future[_TrialProcess] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._hand_out()
        try:
            yield await turn
        finally:
            if turn.done() and not turn.cancelled():
                self._free.append(turn.result())
                self._served.discard(tenant)
            self._hand_out()

    def _hand_out(self) -> None:
        for tenant in list(self._waiting):
            waiting = self._waiting[tenant]
            while waiting and waiting[0].cancelled():
                waiting.popleft()
            if waiting and self._free and tenant not in self._served:
                waiting.popleft().set_result(self._free.pop())
                self._served.add(tenant)
                self._waiting[tenant] = self._waiting.pop(tenant)
            if not waiting:
                del self._waiting[tenant]

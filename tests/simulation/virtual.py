"""Virtual time: an event loop whose clock jumps to the next timer, and processes that share it.

A callback belongs to the process in whose context it was started. A killed process runs nothing
more, not even `finally` blocks; a paused process runs its callbacks when it is resumed. All
randomness is drawn from one seed.
"""

import asyncio
import contextlib
import gc
import heapq
import random
import secrets
import time
from asyncio import BaseEventLoop
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import lru_cache
from typing import Any

from continuo.engine.client import engine_client

CURRENT_PROCESS: "ContextVar[SimulatedProcess | None]" = ContextVar("HERE", default=None)
WALL_CLOCK_START_S = 1_800_000_000.0
"""Wall clock time at which virtual time starts."""


class SimulationDeadlock(Exception):
    """Raised when the loop waits but has neither callbacks nor timers."""


class SimulatedProcess:
    """Simulated process, which can be killed and paused."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(CURRENT_PROCESS.set, self)
        self.tasks: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work, name=name, context=self.context.copy())
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        self.is_dead = True
        self._held.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        self._loop.requeue(held)

    def defer(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)


class VirtualLoop(BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0

    def time(self) -> float:
        return self.now

    def requeue(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]  # private to asyncio

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run `func` at once, because a thread would not be on virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]  # private to asyncio
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]  # private to asyncio
        while timers and (timers[0]._cancelled or not ready):
            if not timers[0]._cancelled:
                self.now = max(self.now, timers[0]._when)
                break
            heapq.heappop(timers)._scheduled = False
        if not ready and not timers:
            raise SimulationDeadlock
        while timers and timers[0]._when <= self.now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            self.steps += 1
            process: SimulatedProcess | None = handle._context.get(CURRENT_PROCESS)
            if handle._cancelled or (process is not None and process.is_dead):
                continue
            if process is not None and process.is_paused:
                process.defer(handle)
            else:
                handle._run()


@contextlib.contextmanager
def virtual_time(loop: VirtualLoop, seed: int) -> Generator[None]:
    """Replace clocks by the loop's and sources of randomness by a seeded one in this context."""
    rng = random.Random(f"secrets of {seed}")
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: loop.now + 1000.0),
        (time, "time", lambda: loop.now + WALL_CLOCK_START_S),
        (secrets, "token_bytes", lambda size=32: rng.randbytes(size)),
        (secrets, "randbits", rng.getrandbits),
        (random, "uniform", rng.uniform),
        (engine_client, "_load_text", _load_cached_text),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    gc_enabled = gc.isenabled()
    gc.disable()  # automatic collections happen at other moments in each run
    for module, name, replacement in replaced:
        setattr(module, name, replacement)
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
        asyncio.set_event_loop(None)
        loop.close()
        if gc_enabled:
            gc.enable()


_load_text: Callable[[dict[str, bytes], int], Any] = engine_client._load_text  # pyright: ignore[reportPrivateUsage]


def _load_cached_text(files: dict[str, bytes], tokens_max: int) -> Any:
    return _text_from_items(tuple(sorted(files.items())), tokens_max)


@lru_cache
def _text_from_items(files: tuple[tuple[str, bytes], ...], tokens_max: int) -> Any:
    """Load the text once for all gateways, which read the same files."""
    return _load_text(dict(files), tokens_max)


def discard_tasks(tasks: list["asyncio.Task[Any]"]) -> None:
    """Discard the unfinished tasks of killed processes without warnings."""
    for task in tasks:
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # private to asyncio
        with contextlib.suppress(BaseException):
            Context().run(task.get_coro().close)

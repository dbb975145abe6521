"""Virtual time: an event loop whose clock jumps to the next timer, and processes that share it.

Whatever runs belongs to the process in whose context it was begun. One that is killed does nothing
any more, not even what a `finally` says; one that is paused does all of it when it goes on. All
that is random is drawn from one seed.
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

HERE: "ContextVar[Process | None]" = ContextVar("HERE", default=None)
BEGAN_S = 1_800_000_000.0
"""The wall clock at the beginning."""


class NothingLeft(Exception):
    """Nothing will ever happen any more, and somebody waits."""


class Process:
    """What has a memory of its own, and may be killed or paused."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(HERE.set, self)
        self.tasks: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work, name=name, context=self.context.copy())
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        self.dead = True
        self._held.clear()

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        self._loop.put_back(held)

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)


class VirtualLoop(BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0

    def time(self) -> float:
        return self.now

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]  # private to asyncio

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """At once: another thread would have a time of its own."""
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
            raise NothingLeft
        while timers and timers[0]._when <= self.now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            self.steps += 1
            process = handle._context.get(HERE)
            if handle._cancelled or (process is not None and process.dead):
                continue
            if process is not None and process.paused:
                process.hold(handle)
            else:
                handle._run()


@contextlib.contextmanager
def virtual(loop: VirtualLoop, seed: int) -> Generator[None]:
    """Clocks are the loop's, and randomness comes from the seed, as long as this lasts."""
    chance = random.Random(f"secrets of {seed}")
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: loop.now + 1000.0),
        (time, "time", lambda: loop.now + BEGAN_S),
        (secrets, "token_bytes", lambda size=32: chance.randbytes(size)),
        (secrets, "randbits", chance.getrandbits),
        (random, "uniform", chance.uniform),
        (engine_client, "_load_text", _text_of),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in replaced]
    collects = gc.isenabled()
    gc.disable()  # whatever is found by it is found at another moment each time
    for where, name, ours in replaced:
        setattr(where, name, ours)
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        for where, name, theirs in before:
            setattr(where, name, theirs)
        asyncio.set_event_loop(None)
        loop.close()
        if collects:
            gc.enable()


_made_text: Callable[[dict[str, bytes], int], Any] = engine_client._load_text  # pyright: ignore[reportPrivateUsage]


def _text_of(files: dict[str, bytes], tokens_max: int) -> Any:
    return _text_from(tuple(sorted(files.items())), tokens_max)


@lru_cache
def _text_from(files: tuple[tuple[str, bytes], ...], tokens_max: int) -> Any:
    """Every gateway would read the same files."""
    return _made_text(dict(files), tokens_max)


def bury(tasks: list["asyncio.Task[Any]"]) -> None:
    """Of processes that were killed: what they left is thrown away without a word."""
    for task in tasks:
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # private to asyncio
        with contextlib.suppress(BaseException):
            nowhere = Context()
            nowhere.run(task.get_coro().close)

"""Fails a coroutine at each of its awaits, to show that it leaves nothing behind."""

import asyncio
import contextlib
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

Act = Callable[[], Coroutine[Any, Any, object]]


class InjectedFault(Exception):
    """A failure that no code expects."""


async def fail_at_each_await(act: Act, check: Callable[[], Awaitable[None]]) -> int:
    """Do as `cancel_at_each_await`, and then the same with an InjectedFault, which is raised where
    a call waits for a future. Returns how often a call was cancelled."""
    cancelled = await cancel_at_each_await(act, check)
    await cancel_at_each_await(act, check, InjectedFault())
    return cancelled


async def cancel_at_each_await(
    act: Act, check: Callable[[], Awaitable[None]], fault: InjectedFault | None = None
) -> int:
    """Call `act` again and again. The first call is cancelled when it first waits, the second when
    it waits for the second time and so on, until a call ends before that. After each call `check`
    must pass. Returns how often a call was cancelled. `fault`: raised instead of a cancel."""
    for count in itertools.count():
        reached = asyncio.Event()

        async def run(count: int = count, reached: asyncio.Event = reached) -> None:
            await _fail_at(act(), count, fault, reached)

        with contextlib.suppress(asyncio.CancelledError, InjectedFault):
            await asyncio.create_task(run())
        await check()
        if not reached.is_set():
            return count
    raise AssertionError


@types.coroutine
def _fail_at(
    coroutine: Coroutine[Any, Any, object],
    count: int,
    fault: InjectedFault | None,
    reached: asyncio.Event,
) -> Generator[Any, Any, object]:
    """Run a coroutine, and fail it when it waits after it has waited `count` times."""
    task = asyncio.current_task()
    assert task is not None
    thrown: BaseException | None = None
    for waits in itertools.count():
        try:
            awaited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            return end.value
        thrown = None
        if waits == count:
            reached.set()
            if fault is None:
                task.cancel()
            elif awaited is not None:  # a future, which others may wait for
                awaited._asyncio_future_blocking = False
                thrown = fault
                continue
        try:
            yield awaited
        except BaseException as error:
            thrown = error
    return None

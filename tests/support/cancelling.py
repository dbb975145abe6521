"""Cancels a coroutine at each of its awaits, to show that it leaves nothing behind."""

import asyncio
import contextlib
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

Act = Callable[[], Coroutine[Any, Any, object]]


async def cancel_at_each_await(act: Act, check: Callable[[], Awaitable[None]]) -> int:
    """Call `act` again and again, cancelled when it first waits, when it waits for the second time
    and so on, until it ends before that. After each call `check` must pass. Returns how often it
    was cancelled."""
    for count in itertools.count():
        reached = asyncio.Event()
        task = asyncio.create_task(_cancel_at(act(), count, reached))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await check()
        if not reached.is_set():
            return count
    raise AssertionError


@types.coroutine
def _cancel_at(
    coroutine: Coroutine[Any, Any, object], count: int, reached: asyncio.Event
) -> Generator[Any, Any, object]:
    """Run a coroutine, and cancel its task when it waits after it has waited `count` times."""
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
            task.cancel()
        try:
            yield awaited
        except BaseException as error:
            thrown = error
    return None

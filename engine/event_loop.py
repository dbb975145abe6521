"""The event loop of gateway and engine: that of uvloop, or of asyncio where uvloop has no wheel."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

try:
    from uvloop import run as _run
except ImportError:
    from asyncio import run as _run

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, and return its result."""
    return _run(main)


async def run_in_thread(name: str, work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Run `work` on a thread of its own called `name`, and return its result. A cancel does not
    end the work.

    The default executor of the event loop, which `asyncio.to_thread` uses, is one queue for all:
    work that blocks there delays everybody else's.
    """
    thread = ThreadPoolExecutor(1, name)
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)
    finally:
        thread.shutdown(wait=False)

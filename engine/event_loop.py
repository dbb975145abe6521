"""The event loop of gateway and engine: that of uvloop, or of asyncio where uvloop has no wheel."""

from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    from uvloop import run as _run
except ImportError:
    from asyncio import run as _run

T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, and return its result."""
    return _run(main)

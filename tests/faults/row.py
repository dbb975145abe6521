"""Row: one fault, what it is done to, and how often."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

World = Callable[[Path], AbstractAsyncContextManager[Any]]
Trial = Callable[[Any, Random], Awaitable[None]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fault: str
    passes: str
    """What must hold each time."""
    world: World
    """What a sitting of trials shares."""
    trial: Trial
    """Does the fault once, at a phase the Random chooses. Raises if anything does not hold."""
    full: int
    """Trials that make it proven."""
    few: int
    """Trials in every run of the tests."""
    lacks: Callable[[], str | None] = lambda: None
    """The program it needs that is not here."""

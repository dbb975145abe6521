"""FaultRow: one fault, the environment it is injected into, and the number of trials."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

Environment = Callable[[Path], AbstractAsyncContextManager[Any]]
Trial = Callable[[Any, Random], Awaitable[None]]


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fault: str
    expectation: str
    """Expectation of every trial, a cell of evidence/faults.md."""
    environment: Environment
    """Environment that consecutive trials share."""
    trial: Trial
    """Inject the fault once, at a phase drawn from the Random. Raises if an expectation fails."""
    full_trials: int
    """Trials of a full run."""
    quick_trials: int
    """Trials in every run of the test suite."""
    missing_requirement: Callable[[], str | None] = lambda: None
    """Name of a required program that is not installed, or None."""

"""A limit on log lines of a kind, so that no flood of their cause fills the log or the disk."""

import time
from collections.abc import Callable

LINES_PER_MINUTE = 10
"""Lines of a kind where the caller sets no other number."""
KINDS_MAX = 256
"""Maximum number of kinds that are counted at a time; the one whose minute began first is dropped
for a new one."""


class LineLimit:
    """Admits at most `lines_per_minute` lines of a kind, and counts the others."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        lines_per_minute: int = LINES_PER_MINUTE,
    ) -> None:
        self._clock = clock
        self._lines_per_minute = lines_per_minute
        self._windows: dict[str, tuple[float, int]] = {}
        """Start of the present minute, and lines since then, by kind of line."""

    def __len__(self) -> int:
        return len(self._windows)

    def admit(self, kind: str) -> int | None:
        """Count a line. Returns None if it must not be logged, else how many of the kind were not
        logged in the minute before."""
        now, suppressed = self._clock(), 0
        began, count = self._windows.get(kind, (now, 0))
        if now - began >= 60:
            began, suppressed, count = now, max(count - self._lines_per_minute, 0), 0
        if count == 0:
            self._begin(kind)
        self._windows[kind] = began, count + 1
        return suppressed if count < self._lines_per_minute else None

    def _begin(self, kind: str) -> None:
        """Make a kind the one whose minute began last."""
        self._windows.pop(kind, None)
        if len(self._windows) >= KINDS_MAX:
            del self._windows[next(iter(self._windows))]

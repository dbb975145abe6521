"""Deadlines: which sessions have not been used for as long as they may be. Pure.

A timeout counts from the end of the last turn or change, and cannot fire inside a turn. To use a
session costs nothing here: its entry is looked at when it comes up, and put back where it belongs.
"""

import heapq
import itertools
from collections.abc import Iterator

from continuo.engine.core.sequence import Sequence


class IdleTimeouts:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        """(not before, which push, the session), one for each that has a timeout."""
        self._pushes = itertools.count()

    def add(self, sequence: Sequence) -> None:
        if sequence.timeout_s is not None:
            self._push(sequence, sequence.last_used_s + sequence.timeout_s)

    def pop_expired(self, now: float) -> Iterator[Sequence]:
        """Those whose time is up, each once. They may be closed meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[2]
            if sequence.closing_command is not None or sequence.timeout_s is None:
                continue
            deadline = sequence.last_used_s + sequence.timeout_s
            if sequence.is_busy or sequence.deferred:
                deadline = max(deadline, now + sequence.timeout_s)
            if deadline > now:
                self._push(sequence, deadline)
            else:
                yield sequence

    def next_due_in_s(self, now: float) -> float | None:
        """How long until the next may be due; None: never."""
        return self._heap[0][0] - now if self._heap else None

    def _push(self, sequence: Sequence, deadline: float) -> None:
        heapq.heappush(self._heap, (deadline, next(self._pushes), sequence))

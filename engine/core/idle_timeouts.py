"""IdleTimeouts: finds the sessions whose idle timeout has passed. Pure.

A timeout counts from the end of the last turn or change, and cannot expire during a turn. Using a
session does not update the heap: an entry is only checked when it is due, and is pushed again if
the actual deadline is later.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic

from continuo.engine.core.token_sequence import SequenceT


class IdleTimeouts(Generic[SequenceT]):
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceT]] = []
        """Entries (earliest deadline, tie-breaker, session), one per session with a timeout."""
        self._pushes = itertools.count()

    def add(self, sequence: SequenceT) -> None:
        if sequence.timeout_s is not None:
            self._push(sequence, sequence.last_used_s + sequence.timeout_s)

    def pop_expired(self, now: float) -> Iterator[SequenceT]:
        """Yield each session whose timeout has passed, once. The caller may close a session before
        it asks for the next one."""
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
        """Return the seconds until the next entry is due; None if there is none."""
        return self._heap[0][0] - now if self._heap else None

    def _push(self, sequence: SequenceT, deadline: float) -> None:
        heapq.heappush(self._heap, (deadline, next(self._pushes), sequence))

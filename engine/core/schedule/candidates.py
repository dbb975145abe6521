"""Candidates for one step: PoppedTurns, taken from the queues, and Refusals, the groups of which no
more turns are considered. Pure."""

from collections.abc import Callable, Collection

from continuo.engine.core.schedule.fault_isolation import SequenceFilter
from continuo.engine.core.schedule.turn_queue import TurnQueue
from continuo.engine.core.sequence import Sequence

REFUSED_TURNS_MAX = 4
"""Maximum turns of a group refused admission in one step before the search for one that fits
ends."""


class Refusals:
    """Groups of which no more turns of a queue are considered, because several of them were refused
    admission in one search: for the rest of that search, and in the next ones until the state has
    changed."""

    def __init__(self, read_state: Callable[[], tuple[int, ...]]) -> None:
        """`read_state` returns all that an admission depends on."""
        self._read_state = read_state
        self._state: tuple[int, ...] = ()
        """State at the first refusal of the search that added the first one of `full`."""
        self._counts: dict[str, int] = {}
        """Number of refusals in this search, by group."""
        self.full: set[str] = set()

    def begin_search(self) -> None:
        """Begin to look for turns with room. The state is read only where it matters: most searches
        refuse no turn."""
        self._counts.clear()
        if self.full and self._state != self._read_state():
            self.full.clear()

    def add(self, sequence: Sequence) -> None:
        """Record that a turn was refused admission."""
        if not self._counts and not self.full:
            self._state = self._read_state()
        group = sequence.group
        count = self._counts[group] = self._counts.get(group, 0) + 1
        if count >= REFUSED_TURNS_MAX:
            self.full.add(group)


class PoppedTurns:
    """Turns popped from the queues while one step is planned. Those with prefill left are queued
    again when it is planned."""

    def __init__(self, step: int, sequence_filter: SequenceFilter | None) -> None:
        self._step = step
        self._filter = sequence_filter
        self.turns: list[Sequence] = []

    def accepts(self, sequence: Sequence) -> bool:
        """Return whether the sequence may have a row in this step."""
        return self._filter is None or self._filter(sequence)

    def pop(self, queue: TurnQueue, skipped_groups: Collection[str] = ()) -> Sequence | None:
        """Pop the first turn that may have a row, of a group that is not skipped."""
        while (sequence := queue.pop(self._step, skipped_groups)) is not None:
            self.turns.append(sequence)
            if self._filter is None or self._filter(sequence):
                return sequence
        return None

    def take(self, sequence: Sequence, queue: TurnQueue) -> None:
        """Pop a certain turn."""
        queue.remove(sequence)
        self.turns.append(sequence)

"""Candidates for one step: PoppedTurns, taken from the queues, and Refusals, the groups of which no
more turns are considered. Pure."""

from collections.abc import Collection, Iterator

from continuo.engine.core.schedule.fault_isolation import SequenceFilter
from continuo.engine.core.schedule.turn_queue import TurnQueue
from continuo.engine.core.sequence import Sequence

REFUSED_TURNS_MAX = 4
"""Maximum turns of a group refused admission in one step before the search for one that fits
ends."""


class Refusals:
    """Groups of which no more turns are considered in this step. `full` remembers them for the next
    steps, for as long as `state` stays the same."""

    def __init__(
        self,
        full: dict[str, tuple[int, ...]],
        state: tuple[int, ...],
        blocked_groups: Collection[str] = (),
    ) -> None:
        if full and next(iter(full.values())) != state:
            full.clear()
        self.groups = {*blocked_groups, *full}
        self._full = full
        self._state = state
        self._counts: dict[str, int] = {}

    def add(self, sequence: Sequence) -> None:
        """Record that a turn was refused admission."""
        group = sequence.group
        count = self._counts[group] = self._counts.get(group, 0) + 1
        if count >= REFUSED_TURNS_MAX:
            self.groups.add(group)
            self._full[group] = self._state


class PoppedTurns:
    """Turns popped from the queues while one step is planned. Those with prefill left are queued
    again when it is planned."""

    def __init__(self, step: int, sequence_filter: SequenceFilter | None) -> None:
        self._step = step
        self._filter = sequence_filter
        self._turns: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._turns)

    def accepts(self, sequence: Sequence) -> bool:
        """Return whether the sequence may have a row in this step."""
        return self._filter is None or self._filter(sequence)

    def pop(self, queue: TurnQueue, skipped_groups: Collection[str] = ()) -> Sequence | None:
        """Pop the first turn that may have a row, of a group that is not skipped."""
        while (sequence := queue.pop(self._step, skipped_groups)) is not None:
            self._turns.append(sequence)
            if self.accepts(sequence):
                return sequence
        return None

    def take(self, sequence: Sequence, queue: TurnQueue) -> None:
        """Pop a certain turn."""
        queue.remove(sequence)
        self._turns.append(sequence)

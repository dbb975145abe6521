"""CheckedQueue: a TurnQueue that must not change while it is read, as when a step is planned."""

from collections.abc import Collection, Iterator, Mapping

from continuo.engine.core.schedule.turn_queue import TurnQueue
from continuo.engine.core.sequence import Sequence


class CheckedQueue(TurnQueue):
    def __init__(self) -> None:
        super().__init__()
        self._changes = 0
        """Number of sequences that entered, left or changed their place."""

    def push(self, sequence: Sequence) -> None:
        place = self.places.get(sequence)
        super().push(sequence)
        self._changes += self.places[sequence] is not place

    def remove(self, sequence: Sequence) -> bool:
        is_removed = super().remove(sequence)
        self._changes += is_removed
        return is_removed

    def in_order(self, skipped: Collection[str], served: Mapping[str, float]) -> Iterator[Sequence]:
        changes = self._changes
        for sequence in super().in_order(skipped, served):
            yield sequence
            assert self._changes == changes, "the queue changed while it was read"

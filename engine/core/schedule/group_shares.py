"""GroupShares: how rows and pages are shared among groups of turns. Pure.

Groups that have turns are entitled to rows and pages in proportion to their weights. What a group
does not use, the others may; it gets its share back by retraction (`Scheduler`), because a turn of
another group is retracted as long as that group then still has more, per weight, than its own.
"""

from collections import Counter
from collections.abc import Iterable

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.sequence import Sequence


class GroupShares:
    """Weight, admitted turns and pages of each group. Pages that a retracted turn still has count
    too: it would not be fair to take more of them from its group."""

    def __init__(
        self,
        cache: SessionAwareCache,
        admitted: Iterable[Sequence],
        retracted: Iterable[Sequence],
    ) -> None:
        self._weights: dict[str, float] = {}
        self._turns = Counter(sequence.group for sequence in admitted)
        self._pages: Counter[str] = Counter()
        for sequence in (*admitted, *retracted):
            self._weights[sequence.group] = sequence.weight
            self._pages[sequence.group] += cache.usage.exclusive_pages(sequence.lease)

    def share(self, sequence: Sequence) -> float:
        """Return the share of the group of a sequence, from 0 to 1."""
        others = sum(w for group, w in self._weights.items() if group != sequence.group)
        return sequence.weight / (others + sequence.weight)

    def turns(self, sequence: Sequence) -> int:
        """Return the number of admitted turns of the group of a sequence."""
        return self._turns[sequence.group]

    def pages(self, sequence: Sequence) -> int:
        """Return the pages of the group of a sequence that no other lease references."""
        return self._pages[sequence.group]

    def is_richer(self, other: Sequence, sequence: Sequence, new_pages: int) -> bool:
        """Return whether the group of `other` has more pages, per weight, than that of `sequence`
        would have with `new_pages` more."""
        have = (self.pages(sequence) + new_pages) / sequence.weight
        return self.pages(other) / other.weight > have


def interleave_groups(ordered: list[Sequence]) -> list[Sequence]:
    """Return `ordered` such that the first n, for each n, are shared among groups in proportion to
    their weights. Within a group, the order stays."""
    counts: Counter[str] = Counter()
    places: list[float] = []
    for sequence in ordered:
        counts[sequence.group] += 1
        places.append(counts[sequence.group] / sequence.weight)
    by_place = sorted(range(len(ordered)), key=places.__getitem__)
    return [ordered[index] for index in by_place]

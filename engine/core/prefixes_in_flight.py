"""PrefixesInFlight: the prefixes that launched rows are computing. Pure.

    sequence a   | shared pages (radix tree) | being computed ......
    sequence b   | the same pages            | owed: the same ids    → waits for a's step

A sequence whose next tokens another one is computing, after the same shared pages, need not compute
them too: when that step is collected, its pages are published, and the sequence finds them there.
"""

from continuo.engine.core.cache.radix_tree import RadixNode
from continuo.engine.core.sequence import Sequence

SHARED_TOKENS_MIN = 64
"""Minimum tokens that another sequence computes too for one to wait; less if they are at least half
of what it owes."""

_NextPage = tuple[str, RadixNode | None, bytes]
"""Cache scope, last shared page, and the ids of the page after it."""


class PrefixesInFlight:
    def __init__(self, page_size: int, *, is_used: bool = True) -> None:
        """`is_used` False: no sequence waits for another."""
        self._page_size = page_size
        self._is_used = is_used
        self._computing: dict[_NextPage, Sequence] = {}

    def begin_step(self) -> None:
        """Remove the sequences of which nothing is in flight any more, and look up the next pages
        of the others, which may have published some since."""
        if self._computing:
            computing, self._computing = self._computing, {}
            for sequence in computing.values():
                if sequence.in_flight:
                    self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Record that a row of the sequence is launched."""
        page = self._next_page(sequence) if sequence.publish_to and self._is_used else None
        if page is not None:
            self._computing[page] = sequence

    def are_computed_for(self, sequence: Sequence) -> bool:
        """Return whether another sequence is computing the next tokens of `sequence`."""
        if not self._computing:
            return False
        page = self._next_page(sequence)
        other = self._computing.get(page) if page is not None else None
        if other is None or other is sequence or self._next_page(other) != page:
            return False
        start = len(sequence.lease.path) * self._page_size
        end = start + min(SHARED_TOKENS_MIN, (sequence.owed + 1) // 2)
        return end <= other.publish_to and sequence.ids[start:end] == other.ids[start:end]

    def _next_page(self, sequence: Sequence) -> _NextPage | None:
        """Return the page that the sequence will publish next; None if it will not publish one."""
        path = sequence.lease.path
        start = len(path) * self._page_size
        end = start + self._page_size
        if end > sequence.publish_to:
            return None
        node = path[-1] if path else None
        return sequence.lease.scope, node, sequence.ids[start:end].tobytes()

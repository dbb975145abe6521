"""TreeLookup: drafts that continue a log as other sessions of the same cache scope continued it.

The radix tree has the logs of sessions that were closed or forked, and of regular ones after each
turn, hence the answer to a prompt that is sent again.
"""

from array import array

from continuo.engine.core.cache.radix_tree import RadixTree
from continuo.engine.core.sequence import Sequence


class TreeLookup:
    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree

    def expects_match(self, sequence: Sequence) -> bool:
        """Return whether the log is in the tree, with at least two further ids."""
        return len(self.propose(sequence, 2)) == 2

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        lease = sequence.lease
        return self._tree.find_continuation(lease.scope, sequence.ids, lease.path, count)

"""PromptLookup: drafts that repeat what followed the last ids earlier in the same session.

Prompt lookup decoding (Saxena 2023), the method `ngram` of vLLM. The log of a session is its own
draft: tool results, quotations and code are copied from it into answers.
"""

from array import array
from collections import OrderedDict

from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation.ngram_index import NgramIndex
from continuo.engine.wire.token_log import TokenLog

INDEXED_SESSIONS_MAX = 256
"""Maximum number of sessions with an index; beyond, that of the least recently used one is
released, and built again when it is next needed."""


class PromptLookup:
    def __init__(self, least: int, most: int) -> None:
        """`least`, `most`: ids of the shortest and the longest n-gram that is looked up."""
        self._least = least
        self._most = most
        self._indexed: OrderedDict[TokenLog, None] = OrderedDict()
        """Logs with an index, least recently used first."""

    def expects_match(self, sequence: Sequence) -> bool:
        """Return whether the last ids of the log have occurred before."""
        return self._index_of(sequence.log).find() >= 0

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        """Return up to `count` drafts. An occurrence that overlaps the end of the log is continued
        periodically."""
        index, ids = self._index_of(sequence.log), sequence.ids
        source, end = index.find(), len(sequence.ids)
        drafts = array("i")
        if source < 0:
            return drafts
        drafts.extend(ids[source : source + count])
        while len(drafts) < count:
            drafts.append(drafts[source + len(drafts) - end])
        return drafts

    def _index_of(self, log: TokenLog) -> NgramIndex:
        """Return the index of a log, updated."""
        index = log.index
        if not isinstance(index, NgramIndex):
            index = log.index = NgramIndex(log.ids, self._least, self._most)
            if len(self._indexed) >= INDEXED_SESSIONS_MAX:
                released, _ = self._indexed.popitem(last=False)
                released.index = None
            self._indexed[log] = None
        self._indexed.move_to_end(log)
        index.update()
        return index

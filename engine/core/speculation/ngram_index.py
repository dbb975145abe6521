"""NgramIndex: where the last ids of a log have occurred in it before. Pure.

The hash chains of LZ77 compressors: the newest position behind each n-gram of `least` ids, and for
each position the next older one behind the same n-gram.

    log     a b c x y . . . a b c z . . . a b c
                  └──────── ◀ ────┘ ◀──── newest

Memory is bounded: the index covers at most the last POSITIONS_MAX ids. Indexing an id takes under a
microsecond, so each update adds at most UPDATE_IDS_MAX ids, and the next ones add the rest.
"""

from array import array

POSITIONS_MAX = 16_384
"""Maximum number of indexed positions; at that number the index restarts with the newer half. A
position takes about 150 bytes."""
UPDATE_IDS_MAX = 512
CANDIDATES_MAX = 8
"""Maximum number of earlier occurrences that are compared, newest first."""


class NgramIndex:
    def __init__(self, log: "array[int]", least: int, most: int) -> None:
        """`least`, `most`: ids of the shortest and the longest n-gram that is looked up."""
        self._log = log
        self._least = least
        self._most = most
        self._newest: dict[bytes, int] = {}
        """Newest indexed position behind each n-gram."""
        self._older: array[int] = array("i")
        """For each indexed position, the next older one behind the same n-gram; -1: none."""
        self._start = 0
        """First indexed position."""

    @property
    def _end(self) -> int:
        return self._start + len(self._older)

    def update(self) -> None:
        """Index the next ids that the log has gained."""
        log, least, newest = self._log, self._least, self._newest
        if len(self._older) >= POSITIONS_MAX:
            self._restart(len(log) - POSITIONS_MAX // 2)
        first, end = self._end, len(log)
        for position in range(first, min(end, first + UPDATE_IDS_MAX)):
            if position - least < self._start:
                self._older.append(-1)
                continue
            ngram = log[position - least : position].tobytes()
            self._older.append(newest.get(ngram, -1))
            newest[ngram] = position

    def truncate(self, to: int) -> None:
        """Remove the positions from `to` on, before their ids are cut off the log."""
        if to <= self._start:
            self._restart(max(to - POSITIONS_MAX // 2, 0))
        for position in range(self._end - 1, to - 1, -1):
            older = self._older.pop()
            if position - self._least < self._start:
                continue
            ngram = self._log[position - self._least : position].tobytes()
            if older < 0:
                del self._newest[ngram]
            else:
                self._newest[ngram] = older

    def find(self) -> int:
        """Return the position behind an earlier occurrence of the last ids of the log: of the
        longest one up to `most` ids, and of those the newest. Returns -1 if there is none of at
        least `least` ids."""
        log, end = self._log, len(self._log)
        candidate = self._newest.get(log[max(end - self._least, 0) :].tobytes(), -1)
        found, found_length = -1, 0
        for _ in range(CANDIDATES_MAX):
            if candidate < 0:
                break
            length = self._match_length(candidate)
            if length > found_length:
                found, found_length = candidate, length
                if length == self._most:
                    break
            candidate = self._older[candidate - self._start]
        return found

    def _match_length(self, candidate: int) -> int:
        """Count the ids before position `candidate` that equal the last ids of the log."""
        log, end, length = self._log, len(self._log), self._least
        while (
            length < self._most
            and candidate > length
            and log[candidate - length - 1] == log[end - length - 1]
        ):
            length += 1
        return length

    def _restart(self, start: int) -> None:
        self._newest.clear()
        self._older = array("i")
        self._start = start

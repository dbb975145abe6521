"""Incremental search for stop strings, in the gateway and in the engine process.

Of all text so far, only the longest suffix that could be the beginning of a stop string matters.
`StopStringFilter` (gateway) holds this suffix back and passes on the text before it;
`StopStringMatcher` (engine process) discards the text before it.

If several stop strings occur, the one that ends first matches; of those that end together, the
longest.
"""

from collections.abc import Sequence
from typing import Protocol


class StopStringFilter:
    """Removes the first stop string and all text after it from a stream of text.

    Text that may be the beginning of a stop string is held back: at most one character less than
    the longest stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._held_max = max(map(len, stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None
        """The stop string found, if any."""

    def push(self, text: str) -> str:
        """Add text. Returns the part of the held-back and the new text that precedes every possible
        stop string."""
        if not self._stops:
            return text
        if self.matched is not None or not text:
            return ""
        text = self._held + text
        found = [
            (start + len(stop), -len(stop), stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        certain = len(text) - self._count_held(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the text held back, at the end of the text: it can no longer become a stop
        string."""
        held, self._held = self._held, ""
        return held

    def _count_held(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is the beginning of a stop string,
        but not a whole one."""
        for length in range(min(self._held_max, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class IncrementalDecoder(Protocol):
    def push(self, ids: Sequence[int]) -> str: ...


class StopStringMatcher:
    """Finds stop strings in the text of ids as they are drawn; a stop string may span several ids.
    The time of a push depends only on the number of new ids."""

    def __init__(self, stops: Sequence[str], detokenizer: IncrementalDecoder) -> None:
        self._filter = StopStringFilter(stops)
        self._detokenizer = detokenizer

    def push(self, ids: Sequence[int]) -> str | None:
        """Add ids. Returns the stop string found so far, if any.

        Push ids one at a time to learn which one completes it.
        """
        if self._filter.matched is None:
            self._filter.push(self._detokenizer.push(ids))
        return self._filter.matched

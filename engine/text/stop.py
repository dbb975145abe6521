"""Stop strings, found while the text is still arriving. Knows no tokenizer, only a text source.

One idea for both sides of the process border: of all text so far only the longest ending that
could be the beginning of a stop string matters. `Holdback` keeps it back; `StopWatch` throws the
rest away.

The match is the one that ends first; of those that end together, the longest.
"""

from collections.abc import Sequence
from typing import Protocol


class StopStringFilter:
    """Lets text through except what may turn out to be a stop string; silent once one matched.

    Holds at most one character less than the longest stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._held_max = max(map(len, stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def push(self, text: str) -> str:
        """The text that is certain now: before the match, if there is one."""
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
        """What was held back; the text has ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _count_held(self, text: str) -> int:
        """Length of the longest ending of `text` that begins a stop string."""
        for length in range(min(self._held_max, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class IncrementalDecoder(Protocol):
    def push(self, ids: Sequence[int]) -> str: ...


class StopStringMatcher:
    """Finds stop strings in ids as they are drawn, also across their borders. O(new ids)."""

    def __init__(self, stops: Sequence[str], detokenizer: IncrementalDecoder) -> None:
        self._filter = StopStringFilter(stops)
        self._detokenizer = detokenizer

    def push(self, ids: Sequence[int]) -> str | None:
        """The stop string found, in these ids or before. Push one at a time to know which id
        completes it."""
        if self._filter.matched is None:
            self._filter.push(self._detokenizer.push(ids))
        return self._filter.matched

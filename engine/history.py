"""History: the finished turns of a regular session, as a tree one can branch from.

    root ── t1 ── t2 ── t3          each node keeps the ids between its parent's end and its own;
              └── t4                a log is put together again only when a branch is taken up

A streaming session has none: it is append-only.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import BadRequest


class Past:
    """A finished turn: the log was `prompt` long when it began and `length` when it ended."""

    __slots__ = ("ids", "length", "parent", "prompt", "turn")

    def __init__(
        self, turn: str, parent: "Past | None", ids: "array[int]", prompt: int, length: int
    ) -> None:
        self.turn = turn
        self.parent = parent
        self.ids = ids
        self.prompt = prompt
        self.length = length


class Base(NamedTuple):
    """What an append goes on from: a log, its last finished turn, and the turns it replaces."""

    ids: "array[int]"
    tip: Past | None
    gone: list[Past]


class History:
    def __init__(self) -> None:
        self._finished: dict[str, Past] = {}
        self._tip: Past | None = None
        """The last finished turn of the present log."""

    def record(self, turn: str, ids: "array[int]", prompt: int) -> None:
        """A turn has ended; `ids` is the whole log."""
        start = self._tip.length if self._tip else 0
        self._tip = Past(turn, self._tip, ids[start:], prompt, len(ids))
        self._finished[turn] = self._tip

    def cut(self, to: int) -> None:
        """The present log was cut to `to` ids."""
        while self._tip is not None and self._tip.length > to:
            self._tip = self._tip.parent

    def base(
        self,
        ids: "array[int]",
        after: str | None,
        *,
        replace: bool,
        drop_previous_output: bool,
        offset: int,
    ) -> "Base":
        """The log to append to, O(its length). Changes nothing yet. Raises BadRequest for a turn
        that has not finished here."""
        past = self._tip if after is None else self._find(after)
        gone: list[Past] = []
        if replace:
            gone = [x for x in self._finished.values() if after is None or past in list(_line(x))]
            past = None if past is None or after is None else past.parent
        if replace or after is not None:
            ids = _log(past)
        if drop_previous_output and past is not None:
            ids = ids[: past.prompt]
        return Base(ids[:offset] if offset else ids, past, gone)

    def take(self, base: "Base") -> None:
        """The present log is now `base.ids`."""
        for past in base.gone:
            del self._finished[past.turn]
        self._tip = base.tip
        self.cut(len(base.ids))

    def _find(self, turn: str) -> Past:
        past = self._finished.get(turn)
        if past is None:
            raise BadRequest(f"turn {turn} has not finished in this session", field="after")
        return past


def common_prefix(a: "array[int]", b: "array[int]") -> int:
    """Length of the longest common prefix, by halves; compares memory."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # equal up to low; they differ before high
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _line(past: Past | None) -> Iterator[Past]:
    while past is not None:
        yield past
        past = past.parent


def _log(past: Past | None) -> "array[int]":
    ids: array[int] = array("i")
    for part in reversed(list(_line(past))):
        ids.extend(part.ids)
    return ids

"""History: the finished turns of a regular session, as a tree one can branch from.

    root ── t1 ── t2 ── t3          each node keeps the ids between its parent's end and its own;
              └── t4                a log is put together again only when a branch is taken up

A turn whose answer a rewind has cut stays in the line of the present log with what is left of it;
whole, it can still be branched from. A streaming session has none: it is append-only.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from continuo.engine.errors import BadRequest


class FinishedTurn:
    """A finished turn: the log was `prompt` long when it began and `length` when it ended. Never
    changed, so that forks share it."""

    __slots__ = ("ids", "length", "parent", "prompt_tokens", "turn_id")

    def __init__(
        self,
        turn_id: str,
        parent: "FinishedTurn | None",
        ids: "array[int]",
        prompt_tokens: int,
        length: int,
    ) -> None:
        self.turn_id = turn_id
        self.parent = parent
        self.ids = ids
        self.prompt_tokens = prompt_tokens
        self.length = length


class AppendBase(NamedTuple):
    """What an append goes on from: a log, its last finished turn, and the turns it replaces."""

    ids: "array[int]"
    tip: FinishedTurn | None
    replaced: list[FinishedTurn]


class TurnTree:
    def __init__(self) -> None:
        self._finished: dict[str, FinishedTurn] = {}
        self._tip: FinishedTurn | None = None
        """The last finished turn of the present log."""

    def record(self, turn: str, ids: "array[int]", prompt_tokens: int) -> None:
        """A turn has ended; `ids` is the whole log."""
        start = self._tip.length if self._tip else 0
        self._tip = FinishedTurn(turn, self._tip, ids[start:], prompt_tokens, len(ids))
        self._finished[turn] = self._tip

    def check_unused(self, turn: str) -> None:
        """Raises BadRequest for the name of a turn that could be branched from."""
        if turn in self._finished:
            raise BadRequest(
                f"turn {turn} has finished in this session already: a new one needs its own name",
                field="turn",
            )

    def truncate(self, to: int) -> None:
        """The present log was cut to `to` ids."""
        self._tip = _truncate(self._tip, to)

    def fork(self, at: int) -> "TurnTree":
        """Of a session on the first `at` ids of the present log: the turns that finished there."""
        child = TurnTree()
        child._tip = _truncate(self._tip, at)
        for past in _ancestry(child._tip):
            if self._finished.get(past.turn_id) is past:
                child._finished[past.turn_id] = past
        return child

    def find_base(
        self,
        ids: "array[int]",
        after: str | None,
        *,
        replace: bool,
        drop_previous_output: bool,
        offset: int,
    ) -> "AppendBase":
        """The log to append to, O(its length). Dropped is what its last turn has said, as far as
        the log still has it, and nothing else: what was appended behind it stays. Changes nothing
        yet. Raises BadRequest for a turn that has not finished here."""
        past = self._tip if after is None else self._find(after)
        gone: list[FinishedTurn] = []
        if replace:
            gone = [
                x for x in self._finished.values() if after is None or past in list(_ancestry(x))
            ]
            past = None if past is None or after is None else past.parent
        if replace or after is not None:
            ids = _join_ids(past)
        if drop_previous_output and past is not None:
            ids = ids[: past.prompt_tokens] + ids[past.length :]
            past = _truncate(past, past.prompt_tokens)
        if offset:
            ids = ids[:offset]
        return AppendBase(ids, _truncate(past, len(ids)), gone)

    def apply_base(self, base: "AppendBase") -> None:
        """The present log is now `base.ids`."""
        for past in base.replaced:
            del self._finished[past.turn_id]
        self._tip = base.tip

    def _find(self, turn: str) -> FinishedTurn:
        past = self._finished.get(turn)
        if past is None:
            raise BadRequest(f"turn {turn} has not finished in this session", field="after")
        return past


def common_prefix_length(a: "array[int]", b: "array[int]") -> int:
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


def _truncate(turn: FinishedTurn | None, to: int) -> FinishedTurn | None:
    """The last turn of its log once that is cut to `to` ids: one that had begun by then, with what
    is left of its answer, be it nothing."""
    while turn is not None and turn.prompt_tokens > to:
        turn = turn.parent
    if turn is None or turn.length <= to:
        return turn
    start = turn.parent.length if turn.parent else 0
    return FinishedTurn(turn.turn_id, turn.parent, turn.ids[: to - start], turn.prompt_tokens, to)


def _ancestry(turn: FinishedTurn | None) -> Iterator[FinishedTurn]:
    while turn is not None:
        yield turn
        turn = turn.parent


def _join_ids(turn: FinishedTurn | None) -> "array[int]":
    ids: array[int] = array("i")
    for part in reversed(list(_ancestry(turn))):
        ids.extend(part.ids)
    return ids

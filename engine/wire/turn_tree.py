"""TurnTree: the finished turns of a regular session, as a tree to branch from.

    root ── t1 ── t2 ── t3          each node keeps the ids from its parent's end to its own end;
              └── t4                a whole log is assembled only when an append branches off

A turn continues the turn that its prompt was appended to, even if the append cut ids off that turn.
When a rewind cuts the output of a turn, the current log continues from a copy of that turn with the
remaining ids; appends can still branch from the end of the whole turn. A streaming session has no
turn tree, because it is append-only.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from continuo.engine.errors import BadRequest

FINISHED_TURNS_MAX = 1_024
"""Maximum finished turns of a session that an append can branch from; the oldest are removed."""
FINISHED_IDS_MAX = 1 << 20
"""Maximum ids of these turns, not counting those that they share with earlier turns."""


class FinishedTurn:
    """Node of the tree. Immutable, so that forked trees can share nodes."""

    __slots__ = ("continues", "ids", "length", "parent", "prompt_tokens", "turn_id")

    def __init__(
        self,
        turn_id: str,
        parent: "FinishedTurn | None",
        ids: "array[int]",
        prompt_tokens: int,
        length: int,
        continues: str | None,
    ) -> None:
        """Args:
        turn_id: id by which an append branches from this turn.
        parent: the finished turn before it in the same log. None: the first one of its log.
        ids: the ids of the log from the end of `parent` to the end of this turn; never changed.
        prompt_tokens: length of the log when the turn began.
        length: length of the log when the turn ended.
        continues: id of the turn that it continues; None: it began a new log.
        """
        self.turn_id = turn_id
        self.parent = parent
        self.ids = ids
        self.prompt_tokens = prompt_tokens
        self.length = length
        self.continues = continues


class AppendBase(NamedTuple):
    """The log that an append extends: the current log of a regular session, or one that the
    append's options choose. `ids`: its content; `tip`: its last finished turn; `continued`: id of
    the turn that the append continues; `replaced`: ids of the finished turns that it discards."""

    ids: "array[int]"
    tip: FinishedTurn | None
    continued: str | None
    replaced: set[str]


class TurnTree:
    def __init__(self) -> None:
        self._finished: dict[str, FinishedTurn] = {}
        self._tip: FinishedTurn | None = None
        """The last finished turn of the current log."""
        self._continued: str | None = None
        """Id of the turn that the next one continues; None: it begins a new log."""
        self._ids = 0
        """Total ids of `_finished`."""

    def record(self, turn: str, ids: "array[int]", prompt_tokens: int) -> None:
        """Add a turn that has ended; `ids` is the whole log at its end, `prompt_tokens` the length
        of the log when the turn began."""
        start = self._tip.length if self._tip else 0
        self._tip = FinishedTurn(
            turn, self._tip, ids[start:], prompt_tokens, len(ids), self._continued
        )
        self._continued = turn
        self._add(self._tip)
        while len(self._finished) > 1 and (
            len(self._finished) > FINISHED_TURNS_MAX or self._ids > FINISHED_IDS_MAX
        ):
            self._remove(next(iter(self._finished)))

    def _add(self, turn: FinishedTurn) -> None:
        self._finished[turn.turn_id] = turn
        self._ids += len(turn.ids)

    def _remove(self, turn_id: str) -> None:
        self._ids -= len(self._finished.pop(turn_id).ids)

    def check_unused(self, turn: str) -> None:
        """Raise BadRequest if a finished turn has this id."""
        if turn in self._finished:
            raise BadRequest(
                f"turn {turn} has already finished in this session; a new turn needs a new id",
                field="turn",
            )

    def truncate(self, to: int) -> None:
        """Update the tree after the current log has been cut to its first `to` ids."""
        self._tip = _truncate(self._tip, to)

    def continue_tip(self) -> None:
        """Let the next turn continue the last turn of the current log, which was rewound."""
        self._continued = _id_of(self._tip)

    def fork(self, at: int) -> "TurnTree":
        """Return the tree of a session forked from the first `at` ids of the current log: the turns
        that finished within them."""
        child = TurnTree()
        child._tip = _truncate(self._tip, at)
        child.continue_tip()
        for past in _ancestry(child._tip):
            if self._finished.get(past.turn_id) is past:
                child._add(past)
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
        """Return the log that an append extends, in time linear in its length. The options are
        those of AppendIds.

        `drop_previous_output` removes the output of the log's last turn, as far as the log still
        has it; ids appended after that output stay. The tree does not change until `apply_base`.
        Raises BadRequest if `after` is not a finished turn of this session.
        """
        past, continued = self._tip, self._continued
        if replace or after is not None:
            past, continued = None if after is None else self._find(after), after
            ids = _join_ids(past)
        replaced = self._find_continuations(after) if replace else set[str]()
        if drop_previous_output and past is not None:
            ids = ids[: past.prompt_tokens] + ids[past.length :]
            past = _truncate(past, past.prompt_tokens)
        if offset:
            ids = ids[:offset]
        return AppendBase(ids, _truncate(past, len(ids)), continued, replaced)

    def apply_base(self, base: "AppendBase") -> None:
        """Continue from an earlier turn: `base.tip` becomes the last finished turn of the session,
        and the turns that an append discards (`base.replaced`) are deleted."""
        for turn in base.replaced:
            self._remove(turn)
        self._tip, self._continued = base.tip, base.continued

    def _find_continuations(self, turn: str | None) -> set[str]:
        """Return the ids of the turns that continue `turn`, or one of its continuations. None:
        all turns. A turn is recorded after the turn that it continues."""
        if turn is None:
            return set(self._finished)
        found: set[str] = set()
        for past in self._finished.values():
            if past.turn_id == turn or past.continues in found:
                found.add(past.turn_id)
        return found - {turn}

    def _find(self, turn: str) -> FinishedTurn:
        past = self._finished.get(turn)
        if past is None:
            raise BadRequest(
                f"turn {turn} has not finished in this session, or is not among its last "
                f"{FINISHED_TURNS_MAX} turns",
                field="after",
            )
        return past


def common_prefix_length(a: "array[int]", b: "array[int]") -> int:
    """Return the length of the longest common prefix, by bisection over memory comparisons."""
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
    """Return the last turn of a log after a cut to `to` ids: the last turn whose whole prompt
    remains, with the remaining part of its output, which may be empty."""
    while turn is not None and turn.prompt_tokens > to:
        turn = turn.parent
    if turn is None or turn.length <= to:
        return turn
    start = turn.parent.length if turn.parent else 0
    return FinishedTurn(
        turn.turn_id, turn.parent, turn.ids[: to - start], turn.prompt_tokens, to, turn.continues
    )


def _id_of(turn: FinishedTurn | None) -> str | None:
    return None if turn is None else turn.turn_id


def _ancestry(turn: FinishedTurn | None) -> Iterator[FinishedTurn]:
    while turn is not None:
        yield turn
        turn = turn.parent


def _join_ids(turn: FinishedTurn | None) -> "array[int]":
    ids: array[int] = array("i")
    for part in reversed(list(_ancestry(turn))):
        ids.extend(part.ids)
    return ids

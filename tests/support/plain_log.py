"""ReferenceTokenLog: a slow, simple model of a session's token log that stores the turn of each id.

Tests compare engine/wire/token_log.py and engine/wire/turn_tree.py with this model. A test updates
the model from the engine's events, in their order; each update copies the whole log. Turn ids must
be unique.
"""

from typing import NamedTuple

from continuo.engine.wire.messages import AppendIds


class LogEntry(NamedTuple):
    id: int | None
    """Token id; None if the entry is the marker of the beginning of `turn`."""
    turn: str | None
    """Turn that generated the id; None for an appended id."""


class ReferenceTokenLog:
    def __init__(self, items: list[LogEntry] | None = None) -> None:
        self.entries = items or []
        self.finished_turns: dict[str, list[LogEntry]] = {}
        self.continued_turns: dict[str, str | None] = {}
        """The turn that each finished turn continues."""
        self.continued: str | None = _last_turn(self.entries)
        """The turn that the next one continues."""
        self.entries_before_turn: list[LogEntry] | None = None
        """Entries at the beginning of the running turn; None if no turn is running."""

    @property
    def ids(self) -> list[int]:
        return _ids(self.entries)

    def refuses(self, append: AppendIds) -> bool:
        return append.after is not None and append.after not in self.finished_turns

    def append(self, append: AppendIds) -> None:
        items = self.entries
        if append.after is not None:
            items, self.continued = self.finished_turns[append.after], append.after
        if append.replace:
            if append.after is None:
                items, self.continued = [], None
            self._erase(append.after)
        if append.drop_previous_output:
            last = _last_turn(items)
            items = [item for item in items if item.id is None or item.turn != last or not last]
        if append.offset:
            items = _until(items, len(_ids(items)[: append.offset]))
        self.entries = items + [LogEntry(id, None) for id in append.ids]

    def rewind(self, to: int) -> None:
        self.entries = _until(self.entries, to)
        self.continued = _last_turn(self.entries)

    def fork(self, at: int) -> "ReferenceTokenLog":
        child = ReferenceTokenLog(
            _until(
                self.entries if self.entries_before_turn is None else self.entries_before_turn, at
            )
        )
        child.finished_turns = {
            turn: items
            for turn, items in self.finished_turns.items()
            if child.entries[: len(items)] == items
        }
        child.continued_turns = {turn: self.continued_turns[turn] for turn in child.finished_turns}
        return child

    def begin_turn(self, turn: str) -> None:
        self.entries_before_turn = self.entries
        self.entries = [*self.entries, LogEntry(None, turn)]

    def append_output(self, turn: str, ids: list[int]) -> None:
        self.entries = self.entries + [LogEntry(id, turn) for id in ids]

    def end_turn(self, turn: str, *, dropped: bool) -> None:
        assert self.entries_before_turn is not None
        if dropped:
            self.entries = self.entries_before_turn
        else:
            self.finished_turns[turn] = self.entries
            self.continued_turns[turn], self.continued = self.continued, turn
        self.entries_before_turn = None

    def _erase(self, turn: str | None) -> None:
        """Remove all turns that continue a finished turn; None: all turns."""
        for name in list(self.finished_turns):
            if turn is None or self.continued_turns[name] == turn:
                if turn is not None:
                    self._erase(name)
                self.finished_turns.pop(name, None)


def _ids(items: list[LogEntry]) -> list[int]:
    return [item.id for item in items if item.id is not None]


def _until(items: list[LogEntry], to: int) -> list[LogEntry]:
    """Return the first `to` ids, with the markers of turns that begin directly after them."""
    kept: list[LogEntry] = []
    for item in items:
        to -= item.id is not None
        if to < 0:
            break
        kept.append(item)
    return kept


def _last_turn(items: list[LogEntry]) -> str | None:
    return next((item.turn for item in reversed(items) if item.turn is not None), None)

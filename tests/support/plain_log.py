"""ReferenceTokenLog: a slow, obvious model of a session's token log, in which each id has its turn.

The oracle of engine/wire/token_log.py and engine/wire/turn_tree.py. The log is updated from the
engine's events, in their order, and copied whole; turn ids must be unique.
"""

from typing import NamedTuple

from continuo.engine.wire.messages import AppendIds


class Item(NamedTuple):
    id: int | None
    """Token id; None marks the beginning of the turn."""
    turn: str | None
    """Turn that generated the id; None for an appended id."""


class PlainLog:
    def __init__(self, items: list[Item] | None = None) -> None:
        self.items = items or []
        self.finished: dict[str, list[Item]] = {}
        self.before: list[Item] | None = None
        """Entries before the running turn; None if no turn is running."""

    @property
    def ids(self) -> list[int]:
        return _ids(self.items)

    def refuses(self, append: AppendIds) -> bool:
        return append.after is not None and append.after not in self.finished

    def append(self, append: AppendIds) -> None:
        items = self.items
        if append.after is not None:
            items = self.finished[append.after]
        if append.replace:
            items = _before(items, append.after) if append.after is not None else []
            self._erase(append.after)
        if append.drop_previous_output:
            last = next((item.turn for item in reversed(items) if item.turn is not None), None)
            items = [item for item in items if item.id is None or item.turn != last or not last]
        if append.offset:
            items = _until(items, len(_ids(items)[: append.offset]))
        self.items = items + [Item(id, None) for id in append.ids]

    def rewind(self, to: int) -> None:
        self.items = _until(self.items, to)

    def fork(self, at: int) -> "PlainLog":
        child = PlainLog(_until(self.items if self.before is None else self.before, at))
        child.finished = {
            turn: items
            for turn, items in self.finished.items()
            if child.items[: len(items)] == items
        }
        return child

    def began(self, turn: str) -> None:
        self.before = self.items
        self.items = [*self.items, Item(None, turn)]

    def said(self, turn: str, ids: list[int]) -> None:
        self.items = self.items + [Item(id, turn) for id in ids]

    def ended(self, turn: str, *, dropped: bool) -> None:
        assert self.before is not None
        if dropped:
            self.items = self.before
        else:
            self.finished[turn] = self.items
        self.before = None

    def _erase(self, turn: str | None) -> None:
        """Erase a turn and all turns after its end; None: all turns."""
        prefix = self.finished[turn] if turn is not None else []
        for name, items in list(self.finished.items()):
            if items[: len(prefix)] == prefix:
                del self.finished[name]


def _ids(items: list[Item]) -> list[int]:
    return [item.id for item in items if item.id is not None]


def _until(items: list[Item], to: int) -> list[Item]:
    """Keep the first `to` ids, and the markers of turns that begin directly after them."""
    kept: list[Item] = []
    for item in items:
        to -= item.id is not None
        if to < 0:
            break
        kept.append(item)
    return kept


def _before(items: list[Item], turn: str) -> list[Item]:
    """Keep the entries up to the end of the turn before `turn`."""
    items = items[: items.index(Item(None, turn))]
    while items and items[-1].turn is None:
        items = items[:-1]
    return items

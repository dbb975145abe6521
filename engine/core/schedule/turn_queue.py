"""TurnQueue: the turns that wait for prefill, in the order of their service. Pure.

Groups take turns by start-time fair queuing: each has a virtual time, which grows by the tokens
computed for it, divided by its weight; the group with the least one is served next. A group that
had no turns starts at the virtual time of the group served last, so that it saves nothing up.

Within a group: turns with the lowest `priority` number first; among these, overdue turns in the
order of their arrival, then the others, fewest tokens first. A turn is overdue when it has waited
AGING times as many steps as its prefill takes alone, so that no turn is overtaken for ever.
"""

import heapq
from collections.abc import Collection

from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn

AGING = 4
"""Steps after which a waiting turn cannot be overtaken, as a multiple of the steps that its prefill
takes alone."""
STALE_ENTRIES_MIN = 64
"""Minimum number of stale entries of a heap before it is rebuilt without them."""


class QueuedTurn:
    """An entry of the queue. An entry that has left the queue stays in the heaps, which skip it."""

    __slots__ = ("is_queued", "sequence", "tokens", "turn")

    def __init__(self, sequence: Sequence, turn: Turn, tokens: int) -> None:
        self.sequence = sequence
        self.turn = turn
        self.tokens = tokens
        """Tokens to compute."""
        self.is_queued = True


_Entry = tuple[int, int, int, int, QueuedTurn]
"""Three sort keys, a unique number, and the turn."""


class _Group:
    """The queued turns of one group."""

    __slots__ = ("_heaps", "_unsorted", "has_place", "size", "virtual_time")

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self.size = 0
        self.has_place = False
        """Whether the heap of groups has an entry for this one."""
        self._unsorted: dict[QueuedTurn, None] = {}
        """Turns that are in no heap yet, because none was served since they were queued. A turn
        that is served alone never is."""
        self._heaps: _Heaps | None = None

    def push(self, entry: QueuedTurn) -> None:
        self.size += 1
        self._unsorted[entry] = None

    def remove(self, entry: QueuedTurn) -> None:
        self.size -= 1
        entry.is_queued = False
        self._unsorted.pop(entry, None)
        if not self.size:
            self._heaps = None

    def first(self, step: int) -> QueuedTurn:
        """Return the turn to serve next at `step`. The group must have a turn."""
        if len(self._unsorted) == self.size == 1:
            return next(iter(self._unsorted))
        if self._heaps is None:
            self._heaps = _Heaps()
        for entry in self._unsorted:
            self._heaps.push(entry, self.size)
        self._unsorted.clear()
        return self._heaps.first(step, self.size)


class _Heaps:
    """The turns of a group that has had several, by the orders in which they are served."""

    def __init__(self) -> None:
        self._pushes = 0
        self._by_tokens: list[_Entry] = []
        """Heap of (priority, tokens, arrival, number, turn)."""
        self._by_due_step: list[_Entry] = []
        """Heap of (due step, 0, arrival, number, turn): turns not overdue when last seen."""
        self._overdue: list[_Entry] = []
        """Heap of (priority, 0, arrival, number, turn)."""

    def push(self, entry: QueuedTurn, size: int) -> None:
        """Add a turn; `size`: number of queued turns."""
        self._pushes += 1
        turn, number = entry.turn, self._pushes
        self._push(
            self._by_tokens,
            (turn.sampling.priority, entry.tokens, turn.arrival, number, entry),
            size,
        )
        self._push(self._by_due_step, (turn.due_step, 0, turn.arrival, number, entry), size)

    def first(self, step: int, size: int) -> QueuedTurn:
        while (due := _top(self._by_due_step)) and due[0] <= step:
            _, _, arrival, number, entry = heapq.heappop(self._by_due_step)
            place = (entry.turn.sampling.priority, 0, arrival, number, entry)
            self._push(self._overdue, place, size)
        overdue, shortest = _top(self._overdue), _top(self._by_tokens)
        assert shortest is not None
        return overdue[-1] if overdue and overdue[0] <= shortest[0] else shortest[-1]

    def _push(self, heap: list[_Entry], entry: _Entry, size: int) -> None:
        heapq.heappush(heap, entry)
        if len(heap) > 2 * size + STALE_ENTRIES_MIN:
            heap[:] = [each for each in heap if each[-1].is_queued]
            heapq.heapify(heap)


def _top(heap: list[_Entry]) -> _Entry | None:
    """Return the first entry of a heap whose turn is still queued."""
    while heap and not heap[0][-1].is_queued:
        heapq.heappop(heap)
    return heap[0] if heap else None


class TurnQueue:
    def __init__(self) -> None:
        self.turns: dict[Sequence, QueuedTurn] = {}
        """The queued turns, by sequence; to others, read-only."""
        self._groups: dict[str, _Group] = {}
        """Groups with queued turns, and those whose virtual time is ahead."""
        self._order: list[tuple[float, str]] = []
        """Heap of (virtual time, group), one entry for each group with queued turns. A virtual time
        that has grown meanwhile is corrected when it reaches the top."""
        self._virtual_time = 0.0
        """Virtual time of the group served last."""

    def push(self, sequence: Sequence, tokens: int) -> None:
        """Queue a sequence with a turn, of which `tokens` are to be computed."""
        assert sequence.turn is not None
        assert sequence not in self.turns
        entry = self.turns[sequence] = QueuedTurn(sequence, sequence.turn, tokens)
        group = self._groups.get(sequence.group)
        if group is None:
            group = self._groups[sequence.group] = _Group()
        if not group.size:
            group.virtual_time = max(group.virtual_time, self._virtual_time)
        group.push(entry)
        if not group.has_place:
            group.has_place = True
            heapq.heappush(self._order, (group.virtual_time, sequence.group))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, if it is queued."""
        if sequence in self.turns:
            self._groups[sequence.group].remove(self.turns.pop(sequence))

    def pop(self, step: int, skipped_groups: Collection[str] = ()) -> Sequence | None:
        """Remove and return the sequence to serve next at `step`, of a group that is not skipped.
        Returns None if there is none."""
        if not self.turns:
            return None  # groups without turns leave the order when another one is served
        skipped: list[tuple[float, str]] = []
        sequence = None
        while self._order and sequence is None:
            virtual_time, name = self._order[0]
            group = self._groups[name]
            if not group.size:
                heapq.heappop(self._order)
                self._leave_order(name, group)
            elif virtual_time < group.virtual_time:
                heapq.heapreplace(self._order, (group.virtual_time, name))
            elif name in skipped_groups:
                skipped.append(heapq.heappop(self._order))
            else:
                entry = group.first(step)
                sequence = entry.sequence
                del self.turns[sequence]
                group.remove(entry)
                self._virtual_time = max(self._virtual_time, virtual_time)
        for place in skipped:
            heapq.heappush(self._order, place)
        return sequence

    def charge(self, sequence: Sequence, tokens: int) -> None:
        """Count `tokens` computed for the group of a sequence, if it has queued turns, or had more
        than its share."""
        group = self._groups.get(sequence.group)
        if group is not None and (group.size or not group.has_place):
            group.virtual_time += tokens / sequence.weight

    def _leave_order(self, name: str, group: _Group) -> None:
        """Remove a group without queued turns from the order. Its virtual time is kept while it is
        ahead of the others', so that its next turn does not come before theirs."""
        group.has_place = False
        if group.virtual_time <= self._virtual_time:
            del self._groups[name]
        elif len(self._groups) > 2 * len(self._order) + STALE_ENTRIES_MIN:
            self._groups = {
                name: group
                for name, group in self._groups.items()
                if group.has_place or group.virtual_time > self._virtual_time
            }

"""TurnQueue: turns that wait for prefill, in the order of their service. Search: those examined for
one step. Pure.

Groups take turns by start-time fair queuing: each has a virtual time, which grows by the tokens
computed for it, divided by its weight; the group with the least one is served next. A group that
had no turns starts at the virtual time of the group served last, so that it saves nothing up.

Within a group: turns with the lowest `priority` number first; among these, the first due. A turn is
due AGING times as many steps after it came as its prefill takes alone, or earlier if it has a
deadline. So shorter turns overtake longer ones, but none that came so much later.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from heapq import heappop, heappush

from continuo.engine.core.fault_isolation import SequenceFilter
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn

AGING = 4
"""Steps until a waiting turn is due, as a multiple of the steps that its prefill takes alone."""
IDLE_GROUPS_MIN = 64
"""Number of groups without turns that may be kept for their virtual time alone."""

Place = tuple[int, float, int, Sequence]
"""Priority, due step, arrival, sequence. Arrivals are unique, so sequences are never compared."""


def compute_due_step(turn: Turn, steps: float, step_s: float) -> float:
    """Return the step at which a turn is due whose prefill takes `steps` steps alone. `step_s`: the
    seconds of a step; 0: unknown."""
    patience, deadline_ms = AGING * steps, turn.sampling.deadline_ms
    if deadline_ms is not None and step_s:
        patience = min(patience, max(deadline_ms / 1000 / step_s - steps, 0.0))
    return turn.first_step + patience


class _Group:
    """The queued turns of one group, in order, and its virtual time."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.virtual_time = 0.0


class TurnQueue:
    def __init__(self) -> None:
        self.places: dict[Sequence, Place] = {}
        """The queued sequences, and their places; to others, read-only."""
        self._groups: dict[str, _Group] = {}
        """Groups with queued turns, and those whose virtual time is ahead."""
        self._order: list[tuple[float, str]] = []
        """(virtual time, name) of the groups with queued turns, in order."""
        self._virtual_time = 0.0
        """Virtual time of the group served last."""

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence with a turn; or change its place, if another step is due."""
        turn, name = sequence.turn, sequence.group
        assert turn is not None
        place = turn.sampling.priority, turn.due_step, turn.arrival, sequence
        if sequence in self.places:
            if place == self.places[sequence]:
                return
            self.remove(sequence)
        self.places[sequence] = place
        group = self._groups.get(name) or self._groups.setdefault(name, _Group())
        if not group.places:
            group.virtual_time = max(group.virtual_time, self._virtual_time)
            insort(self._order, (group.virtual_time, name))
        insort(group.places, place)

    def remove(self, sequence: Sequence) -> bool:
        """Remove a sequence, if it is queued. Returns whether it was."""
        place = self.places.pop(sequence, None)
        if place is None:
            return False
        group = self._groups[sequence.group]
        del group.places[bisect_left(group.places, place)]
        if not group.places:
            self._remove_from_order(sequence.group, group)
            if len(self._groups) > 2 * len(self._order) + IDLE_GROUPS_MIN:
                self._drop_idle_groups()
        return True

    def in_order(self, skipped: Collection[str], served: Mapping[str, float]) -> Iterator[Sequence]:
        """Iterate over the queued sequences, those to serve first in the next step first. The queue
        must not change meanwhile.

        Args:
            skipped: groups to leave out; more may be added between two sequences.
            served: by group, the tokens already planned for it in this step, divided by its weight;
                may grow between two sequences.
        """
        order, number = self._order, 0
        visited: list[tuple[float, str, int]] = []
        """Heap of (virtual time, name, index of the next place): groups of which a sequence was
        taken."""
        while True:
            if number < len(order) and not (visited and visited[0] < order[number]):
                name, index = order[number][1], 0
                number += 1
            elif visited:
                _, name, index = heappop(visited)
            else:
                return
            if name in skipped:
                continue
            group = self._groups[name]
            yield group.places[index][-1]
            index += 1
            if index < len(group.places):
                heappush(visited, (group.virtual_time + served.get(name, 0.0), name, index))

    def charge(self, name: str, served: float) -> None:
        """Advance the virtual time of a group, if it has queued turns, or had more than its share.
        `served`: tokens computed for it, divided by its weight."""
        group = self._groups.get(name)
        if group is None:
            return
        if not group.places:
            group.virtual_time += served
            return
        self._virtual_time = max(self._virtual_time, group.virtual_time)
        self._remove_from_order(name, group)
        group.virtual_time += served
        insort(self._order, (group.virtual_time, name))

    def _remove_from_order(self, name: str, group: _Group) -> None:
        del self._order[bisect_left(self._order, (group.virtual_time, name))]

    def _drop_idle_groups(self) -> None:
        """Drop the groups without turns whose virtual time is not ahead of the others'. The next
        turn of a group that had more than its share does not come before theirs."""
        self._groups = {
            name: group
            for name, group in self._groups.items()
            if group.places or group.virtual_time > self._virtual_time
        }


class Search:
    """The search for the rows of one step, which examines no sequence twice."""

    def __init__(self, accepts: SequenceFilter | None, prefilling: list[Sequence]) -> None:
        """`accepts` returns whether a sequence may have a row (None: all may); `prefilling`: the
        admitted turns that owe more than the id drawn last."""
        self._accepts = accepts
        self.prefilling = prefilling
        self.seen: dict[Sequence, None] = {}
        self.blocked: set[str] = set()
        """Groups without room for more turns: their long turns are not considered."""

    def takes(self, sequence: Sequence) -> bool:
        """Return whether a sequence was not examined yet, and may have a row."""
        if sequence in self.seen or not (self._accepts is None or self._accepts(sequence)):
            return False
        self.seen[sequence] = None
        return True

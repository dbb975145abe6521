"""TurnQueue: turns that wait for prefill, in the order of their service. Pure.

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
        if place == self.places.get(sequence):
            return
        self.remove(sequence)
        self.places[sequence] = place
        group = self._groups.setdefault(name, _Group())
        if not group.places:
            group.virtual_time = max(group.virtual_time, self._virtual_time)
            insort(self._order, (group.virtual_time, name))
        insort(group.places, place)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, if it is queued."""
        place = self.places.pop(sequence, None)
        if place is None:
            return
        group = self._groups[sequence.group]
        del group.places[bisect_left(group.places, place)]
        if not group.places:
            self._remove_from_order(sequence.group, group)
            self._drop_idle_groups()

    def in_order(self, skipped: Collection[str], served: Mapping[str, float]) -> Iterator[Sequence]:
        """Iterate over the queued sequences, those to serve first in the next step first. The queue
        must not change meanwhile.

        Args:
            skipped: groups to leave out; more may be added between two sequences.
            served: by group, the tokens already planned for it in this step, divided by its weight;
                may grow between two sequences.
        """
        cursors: dict[str, int] = {}
        visited: list[tuple[float, str]] = []
        """Heap of (virtual time, name): groups of which a sequence was taken."""
        number = 0
        while True:
            if number < len(self._order) and not (visited and visited[0] < self._order[number]):
                name = self._order[number][1]
                number += 1
            elif visited:
                name = heappop(visited)[1]
            else:
                return
            if name in skipped:
                continue
            group, cursor = self._groups[name], cursors.get(name, 0)
            cursors[name] = cursor + 1
            yield group.places[cursor][-1]
            if cursor + 1 < len(group.places):
                heappush(visited, (group.virtual_time + served.get(name, 0.0), name))

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
        if len(self._groups) > 2 * len(self._order) + IDLE_GROUPS_MIN:
            self._groups = {
                name: group
                for name, group in self._groups.items()
                if group.places or group.virtual_time > self._virtual_time
            }

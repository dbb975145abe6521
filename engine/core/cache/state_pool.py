"""StatePool: the recurrent states of all leases, each in a slot.

A state is a value: a step reads the slot of the state at `committed` and writes another one, and no
slot is written twice while anything holds it. So a lease, its marks, its forks and the tree share
slots, and a step that is abandoned only releases the slot that it wrote.

    slots     [state at committed, written by step 1 in flight, written by step 2 in flight, …]
"""

from collections.abc import Iterable, Mapping, Sequence

from continuo.engine.batch import STATE_POOL, StateSlots
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_moves import PageMoves
from continuo.engine.core.cache.page_pool import PagePool
from continuo.engine.core.cache.radix_tree import RadixNode
from continuo.engine.core.cache.shared_pool import SharedPool

ROW_SLOTS = 3
"""Slots of a running lease: the state that it has, and those that two steps in flight write."""


class StatePart:
    """The slots that a lease holds."""

    __slots__ = ("live", "marked")

    def __init__(self) -> None:
        self.live: list[int] = [-1]
        """The slot of the state at `committed` (-1 at position 0), then those that the steps in
        flight write, oldest first."""
        self.marked: dict[int, int] = {}
        """Slot of the state at each mark."""


class StatePool:
    def __init__(
        self, index: int, page_size: int, slots: int, host_slots: int, moves: PageMoves
    ) -> None:
        """Args:
        index: index of this component in `PageLease.parts`.
        page_size: tokens of a page, at whose ends nodes of the tree can hold a state.
        slots: size of the pool on the device, in slots.
        host_slots: size of the pool in host memory, in slots; 0: no state is spilled.
        moves: as in `Components`.
        """
        self.index, self.group = index, STATE_POOL
        self.pool = SharedPool(slots)
        self.host_pool = PagePool(host_slots)
        self._page_size = page_size
        self._moves = moves

    def open(self, lease: PageLease) -> None:
        lease.parts.append(StatePart())

    def last_row(self, lease: PageLease) -> StateSlots:
        """Return the slots of the row that was reserved last."""
        live = self._part(lease).live
        return StateSlots(live[-2], live[-1])

    def units_needed(self, lease: PageLease, count: int, *, copy: bool) -> int:
        del lease, count, copy
        return 1

    def units_of_a_row(self, tokens: int) -> int:
        del tokens
        return ROW_SLOTS

    def units_of(self, lease: PageLease) -> int:
        del lease
        return ROW_SLOTS

    def reserve(self, lease: PageLease, count: int, *, copy: bool) -> None:
        del count, copy
        slot = self.pool.allocate()
        self._moves.blank((slot,), self.group)
        self._part(lease).live.append(slot)

    def commit(self, lease: PageLease, start: int, *, is_kept: bool) -> None:
        part = self._part(lease)
        passed = part.live.pop(0 if is_kept else 1)
        if is_kept and start in lease.marks and start not in part.marked:
            part.marked[start] = passed
        else:
            self._release(passed)

    def holds(self, lease: PageLease, position: int) -> bool:
        return not position or self._slot_at(lease, position) >= 0

    def rewind(self, lease: PageLease, to: int) -> None:
        part = self._part(lease)
        assert len(part.live) == 1, "a state is in flight"
        slot = self._share(self._slot_at(lease, to))
        self._release(part.live[0])
        part.live = [slot]

    def settle(self, lease: PageLease) -> None:
        part = self._part(lease)
        for position in [x for x in part.marked if x not in lease.marks]:
            self._release(part.marked.pop(position))

    def release(self, lease: PageLease) -> None:
        part = self._part(lease)
        for slot in (*part.live, *part.marked.values()):
            self._release(slot)
        lease.parts[self.index] = StatePart()

    def publish(self, lease: PageLease, path: Sequence[RadixNode], first: int) -> list[RadixNode]:
        """Share the newest state within the path: it is enough to continue from there, and a state
        takes as much memory as a thousand tokens."""
        del first
        end = len(path) * self._page_size
        known = [x for x in (*lease.marks, lease.committed) if 0 < x <= end]
        newest = max((x for x in known if x % self._page_size == 0), default=0)
        if not newest:
            return []
        node, slot = path[newest // self._page_size - 1], self._slot_at(lease, newest)
        if node.units[self.index] >= 0 or slot < 0:
            return []
        node.units[self.index] = self.pool.share(slot)
        return [node]

    def whole_depth(self, path: Sequence[RadixNode], depth: int) -> int:
        while depth and path[depth - 1].units[self.index] < 0:
            depth -= 1
        return depth

    def adopt(self, lease: PageLease, path: Sequence[RadixNode]) -> None:
        slot = path[-1].units[self.index] if path else -1
        self._part(lease).live = [self._share(slot)]

    def fork(self, lease: PageLease, child: PageLease, at: int, *, copy: bool) -> None:
        del copy  # a state is never written in place
        self._part(child).live = [self._share(self._slot_at(lease, at))]

    def places(self, position: int) -> Sequence[int]:
        return [position] if position else []

    def unit_at(self, lease: PageLease, place: int) -> int:
        return self._slot_at(lease, place)

    def restore(self, lease: PageLease, units: Mapping[int, int]) -> None:
        part = self._part(lease)
        part.live = [units.get(lease.committed, -1)]
        part.marked = {mark: units[mark] for mark in lease.marks}
        if lease.committed in part.marked:
            self.pool.share(part.live[0])

    def audit(self, leases: Iterable[PageLease], nodes: Iterable[RadixNode]) -> None:
        held = [node.units[self.index] for node in nodes if node.units[self.index] >= 0]
        for lease in leases:
            part = self._part(lease)
            held += [slot for slot in (*part.live, *part.marked.values()) if slot >= 0]
            assert (part.live[0] < 0) == (not lease.committed), "the state at `committed`"
            assert (len(part.live) > 1) == (lease.reserved > 0), "the states of the steps in flight"
            assert part.marked.keys() == set(lease.marks), "the states of the marks"
            written = [slot for slot in part.live[1:] if self.pool.holders[slot] > 1]
            assert not written, "a state that is being written has two holders"
        self.pool.audit(held)

    # ---- inside ---------------------------------------------------------------------------

    def _part(self, lease: PageLease) -> StatePart:
        part = lease.parts[self.index]
        assert isinstance(part, StatePart)
        return part

    def _slot_at(self, lease: PageLease, position: int) -> int:
        """Return the slot of the state at a position; -1 for none, and at position 0."""
        part = self._part(lease)
        if position == lease.committed:
            return part.live[0]
        return part.marked.get(position, -1)

    def _share(self, slot: int) -> int:
        return slot if slot < 0 else self.pool.share(slot)

    def _release(self, slot: int) -> None:
        if slot >= 0:
            self.pool.release(slot)

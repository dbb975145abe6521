"""HostTier: bounded host memory for KV pages of idle sessions when the device has no room.

    lease     | pages on the device ............ | host: the pages after them, in order |
              0 ................. committed = len(pages)·P ..................... host_end

P is the page size. A lease spills from its tail, so its host pages always continue where its device
pages end. When the host is full too, the pages of the lease that spilled longest ago are discarded.
Moves are only recorded here; the device executes them in order, before the rows of the next step.

If the model has components besides the full group, a lease spills as a whole, with what makes it
continuable at `committed`: all pages, the last window and the live state. Its marks are spilled
with it: that at the start of its answer in place of marks of others, and those inside the answer as
far as the host has room. A spilled lease that is rewound goes to the newest of them.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from continuo.engine.batch import STATE_POOL, PageMove
from continuo.engine.core.cache.component import Component, places_of
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_moves import PageMoves
from continuo.engine.core.cache.page_pool import PagePool


class HostTier:
    """The host pages and slots of spilled leases, and which leases have them.

    Owns the pool of host pages; each component owns the pool of its host units. Called by
    SessionAwareCache alone, for idle leases, and for busy ones that are about to be recalled or
    rewound. Always: a lease with host pages is continuable from them at `host_end` and at its
    `host_marks`; without components its host pages continue where its device pages end.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        moves: PageMoves,
        components: Iterable[Component] = (),
    ) -> None:
        self.pool = PagePool(pages)
        self._components = components
        self.spilled_pages = 0
        self.recalled_pages = 0
        self.spilled_states = 0
        """State slots copied to the host, those of marks included."""
        self._page_size = page_size
        self._moves = moves
        self._holders: OrderedDict[PageLease, None] = OrderedDict()
        """Leases with host pages, least recently spilled first."""
        self._with_inner_marks: dict[PageLease, None] = {}
        """Holders with more than one mark, in the same order."""
        self._with_marks: dict[PageLease, None] = {}

    @property
    def used_pages(self) -> int:
        return self.pool.total - self.pool.free_count

    def spill(self, lease: PageLease, pages: "array[int]") -> None:
        """Copy `pages`, the last device pages of the lease, to the host before they are released.
        If the host has no room for all of them, none is copied, and the lease's host pages are
        discarded: they continue where `pages` end, and would have no use without them."""
        positions = [lease.committed]
        if not self._make_room(len(pages), lease, positions):
            self.discard(lease)
            return
        positions += self._marks_with_room(lease)
        if not lease.host_pages:
            lease.host_end = lease.committed
        slots = array("i", [self.pool.allocate() for _ in pages])
        for page, slot in zip(pages, slots, strict=True):
            self._moves.append(PageMove("spill", page, slot))
        lease.host_pages = slots + lease.host_pages
        for component in self._components:
            slots = {
                place: component.host_pool.allocate() for place in places_of(component, positions)
            }
            for place, slot in slots.items():
                unit = component.unit_at(lease, place)
                self._moves.append(PageMove("spill", unit, slot, component.group))
            lease.host_units.append(slots)
            if component.group == STATE_POOL:
                self.spilled_states += len(slots)
        lease.host_marks = positions[1:]
        self.spilled_pages += len(pages)
        self._holders[lease] = None
        self._holders.move_to_end(lease)
        if lease.host_marks:
            self._with_marks[lease] = None
        if len(lease.host_marks) > 1:
            self._with_inner_marks[lease] = None

    def has_room_for(self, lease: PageLease) -> bool:
        """Return whether the host has room for a whole lease and all its marks, with no other
        discarded."""
        return self.pool.free_count >= len(lease.pages) and self._has_free(
            [lease.committed, *lease.marks]
        )

    def pin(self, lease: PageLease) -> None:
        """Protect the host pages of a lease, which is about to recall them, from being discarded to
        make room."""
        self._holders.pop(lease, None)
        self._with_marks.pop(lease, None)
        self._with_inner_marks.pop(lease, None)

    def newest_held(self, lease: PageLease, limit: int) -> int:
        """Return the newest position up to `limit` at which a spilled lease is continuable."""
        candidates = (limit, *(mark for mark in reversed(lease.host_marks) if mark < limit))
        return next((x for x in candidates if self._holds(lease, x)), 0)

    def recall(self, lease: PageLease, pages: "array[int]") -> None:
        """Copy all host pages of a lease to `pages` on the device, with what it needs at its end
        and at its `marks`, which are some of those on the host. Releases all that it has on the
        host. The pools of the other components must have room."""
        for slot, page in zip(lease.host_pages, pages, strict=True):
            self._moves.append(PageMove("load", slot, page))
        self.recalled_pages += len(pages)
        lease.committed = lease.host_end
        positions = [lease.host_end, *lease.marks]
        for component, slots in zip(self._components, lease.host_units, strict=False):
            units: dict[int, int] = {}
            for place in places_of(component, positions):
                units[place] = component.pool.allocate()
                self._moves.append(PageMove("load", slots[place], units[place], component.group))
            component.restore(lease, units)
        self.discard(lease)

    def trim(self, lease: PageLease, to: int) -> None:
        """Discard host pages after the first `to` tokens of the lease. If it could not be continued
        there from what remains, it is trimmed to the newest position before at which it can."""
        if not lease.host_pages or to >= lease.host_end:
            return
        if lease.host_units:
            to = self.newest_held(lease, to)
            self._set_marks(lease, [mark for mark in lease.host_marks if mark <= to])
            for component, units in zip(self._components, lease.host_units, strict=True):
                last = max(component.places(to), default=-1)
                _release(component, units, [place for place in units if place > last])
            if not to:
                lease.host_units = []
        keep = max(-(-to // self._page_size) - len(lease.pages), 0)
        self.pool.release(lease.host_pages[keep:])
        del lease.host_pages[keep:]
        lease.host_end = to
        if not lease.host_pages:
            self._holders.pop(lease, None)

    def discard(self, lease: PageLease) -> None:
        self.trim(lease, 0)

    # ---- inside ---------------------------------------------------------------------------

    def _marks_with_room(self, lease: PageLease) -> list[int]:
        """Choose the marks of a lease for which the host has room beside `committed`. For the first
        one, marks that others have on the host are discarded meanwhile."""
        positions = [lease.committed]
        for mark in lease.marks:
            is_first = mark == lease.marks[0]
            while not (has_free := self._has_free([*positions, mark])):
                if not (is_first and self._drop_marks()):
                    break
            if has_free:
                positions.append(mark)
        return positions[1:]

    def _holds(self, lease: PageLease, position: int) -> bool:
        return all(
            place in units
            for component, units in zip(self._components, lease.host_units, strict=True)
            for place in component.places(position)
        )

    def _can_hold(self, positions: Sequence[int]) -> bool:
        """Return whether an empty host could hold what a lease needs at `positions`."""
        return all(
            len(places_of(component, positions)) <= component.host_pool.total
            for component in self._components
        )

    def _has_free(self, positions: Sequence[int]) -> bool:
        """Return whether the host has free units for what a lease needs at `positions`."""
        return all(
            len(places_of(component, positions)) <= component.host_pool.free_count
            for component in self._components
        )

    def _set_marks(self, lease: PageLease, marks: list[int]) -> None:
        """Reduce the marks of a spilled lease to `marks`."""
        lease.host_marks = marks
        if len(marks) <= 1:
            self._with_inner_marks.pop(lease, None)
        if not marks:
            self._with_marks.pop(lease, None)

    def _drop_marks(self) -> bool:
        """Discard the marks inside the answer of a lease, or, if no lease has such marks, the one
        at its start: those of the lease that spilled longest ago. Returns False if no lease has a
        mark."""
        if not self._with_marks:
            return False
        lease = next(iter(self._with_inner_marks or self._with_marks))
        self._set_marks(lease, lease.host_marks[:1] if len(lease.host_marks) > 1 else [])
        positions = [lease.host_end, *lease.host_marks]
        for component, units in zip(self._components, lease.host_units, strict=True):
            needed = places_of(component, positions)
            _release(component, units, [place for place in units if place not in needed])
        return True

    def _make_room(self, pages: int, requester: PageLease, positions: Sequence[int]) -> bool:
        """Discard what other leases have on the host until `pages` are free, and the units that
        `requester` needs at `positions`: first marks, if only units are missing, then all of the
        lease that spilled longest ago; the pages of `requester` last. Meanwhile each round changes
        which lease is the first to lose something. Returns False if that is impossible."""
        if pages > self.pool.total or not self._can_hold(positions):
            return False
        while self.pool.free_count < pages or not self._has_free(positions):
            if self.pool.free_count >= pages and self._drop_marks():
                continue
            oldest = next((x for x in self._holders if x is not requester), None)
            if oldest is not None:
                self.discard(oldest)
            elif requester.host_pages:
                self.trim(
                    requester,
                    (len(requester.pages) + len(requester.host_pages) - 1) * self._page_size,
                )
            else:
                return False
        return True


def _release(component: Component, units: dict[int, int], places: Sequence[int]) -> None:
    """Release the host units at `places`."""
    component.host_pool.release([units.pop(place) for place in places])

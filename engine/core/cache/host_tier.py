"""HostTier: bounded host memory for KV pages of idle sessions when the device has no room.

    lease     | pages on the device ............ | host: the pages after them, in order |
              0 ................. committed = len(pages)·P ..................... host_end

P is the page size. A lease spills from its tail, so its host pages always continue where its device
pages end. When the host is full too, the pages of the lease that spilled longest ago are discarded.
Moves are only recorded here; the device executes them in order, before the rows of the next step.

If the model has components besides the full group, a lease spills as a whole, with what makes it
continuable at `committed`: all pages, the last window and the live state.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from continuo.engine.batch import STATE_POOL, PageMove
from continuo.engine.core.cache.component import Component
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_pool import PagePool


class HostTier:
    def __init__(
        self,
        pages: int,
        page_size: int,
        moves: list[PageMove],
        components: Iterable[Component] = (),
    ) -> None:
        self.pool = PagePool(pages)
        self._components = components
        self.spilled_pages = 0
        self.recalled_pages = 0
        self.spilled_states = 0
        """State slots copied to the host."""
        self._page_size = page_size
        self._moves = moves
        self._holders: OrderedDict[PageLease, None] = OrderedDict()
        """Leases with host pages, least recently spilled first."""

    @property
    def used_pages(self) -> int:
        return self.pool.total - self.pool.free_count

    def spill(self, lease: PageLease, pages: "array[int]") -> None:
        """Copy `pages`, the last device pages of the lease, to the host before they are released.
        If the host has no room for all of them, none is copied, and the lease's host pages are
        discarded: they continue where `pages` end, and would have no use without them."""
        units = [component.spillable(lease) for component in self._components]
        if not self._make_room(len(pages), lease, units):
            self.discard(lease)
            return
        if not lease.host_pages:
            lease.host_end = lease.committed
        slots = array("i", [self.pool.allocate() for _ in pages])
        for page, slot in zip(pages, slots, strict=True):
            self._moves.append(PageMove("spill", page, slot))
        lease.host_pages = slots + lease.host_pages
        for component, spilled in zip(self._components, units, strict=True):
            slots = [component.host_pool.allocate() for _ in spilled]
            for unit, slot in zip(spilled, slots, strict=True):
                self._moves.append(PageMove("spill", unit, slot, component.group))
            lease.host_units.append(slots)
            if component.group == STATE_POOL:
                self.spilled_states += len(slots)
        self.spilled_pages += len(pages)
        self._holders[lease] = None
        self._holders.move_to_end(lease)

    def pin(self, lease: PageLease) -> None:
        """Protect the host pages of a lease, which is about to recall them, from being discarded to
        make room."""
        self._holders.pop(lease, None)

    def recall(self, lease: PageLease, pages: "array[int]") -> None:
        """Copy all host pages of a lease to `pages` on the device, and release the host pages. The
        pools of the other components must have room."""
        for slot, page in zip(lease.host_pages, pages, strict=True):
            self._moves.append(PageMove("load", slot, page))
        self.recalled_pages += len(pages)
        lease.committed = lease.host_end
        for component, slots in zip(self._components, lease.host_units, strict=False):
            units = [component.pool.allocate() for _ in slots]
            for slot, unit in zip(slots, units, strict=True):
                self._moves.append(PageMove("load", slot, unit, component.group))
            component.restore(lease, units)
        self.discard(lease)

    def trim(self, lease: PageLease, to: int) -> None:
        """Discard host pages after the first `to` tokens of the lease; all of them, if it could not
        be continued from what remains."""
        if not lease.host_pages or to >= lease.host_end:
            return
        if lease.host_units:
            to = 0
            for component, slots in zip(self._components, lease.host_units, strict=True):
                component.host_pool.release(slots)
            lease.host_units = []
        keep = max(-(-to // self._page_size) - len(lease.pages), 0)
        self.pool.release(lease.host_pages[keep:])
        del lease.host_pages[keep:]
        lease.host_end = to
        if not lease.host_pages:
            self._holders.pop(lease, None)

    def discard(self, lease: PageLease) -> None:
        self.trim(lease, 0)

    def _make_room(
        self, pages: int, requester: PageLease, units: Sequence[Sequence[int]] = ()
    ) -> bool:
        """Discard host pages until `pages` are free, and as many units of each component as there
        are in `units`: those of the lease that spilled longest ago first, those of `requester`
        last. Returns False if that is impossible."""
        needs = [(self.pool, pages)]
        for component, needed in zip(self._components, units, strict=True):
            needs.append((component.host_pool, len(needed)))
        if any(needed > pool.total for pool, needed in needs):
            return False
        while any(pool.free_count < needed for pool, needed in needs):
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

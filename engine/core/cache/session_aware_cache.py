"""SessionAwareCache: the facade of all KV page management. Every page has exactly one owner:

    free list  |  radix tree (shared, read-only, counted)  |  one lease (private, writable)

    free + tree + leased == total        after every call, verified by `audit`

Pages are taken in this order: free pages; unreferenced tree pages, least recently used first; then
pages of idle leases, least recently used first, from the tail of each, so that the KV that remains
is always a prefix. Pages of idle leases are spilled to the host tier while it has room. A lease
that lost pages has a smaller `committed`: the KV of those tokens must be computed again, and
nothing else changes.

That is the full group of layers. For the others (windows, recurrent states: component.py) each
lease has a part, and `committed` is always a position at which every component holds what the next
token needs. A rewind goes to the newest such position. An idle lease is evicted as a whole, after
its marks. Their pools count holders: free + held == total, in each.

Every call is O(pages moved), never O(history), except those that walk the tree (match, publish,
fork, close), which are off the path of a streaming turn. (The page numbers of a lease that gains or
loses pages are copied: 4 bytes per page.) The device runs steps in order, so a page may be reused
while an earlier step still reads it; see batch.py.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from continuo.engine.batch import Geometry, PageMove, WindowGroup
from continuo.engine.core.cache.component import Component, places_of
from continuo.engine.core.cache.components import Components
from continuo.engine.core.cache.host_tier import HostTier
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_moves import PageMoves
from continuo.engine.core.cache.page_pool import PagePool
from continuo.engine.core.cache.page_usage import PageUsage
from continuo.engine.core.cache.radix_tree import RadixTree


class SessionAwareCache:
    """The pages of the device and of the host tier, and the lease of each sequence.

    Owns every page number, and the moves that the next batch must execute; leases are changed by
    its methods alone. Called by Scheduler (room), EngineLoop (reserve, commit) and Sessions (open,
    rewind, fork, close), on the thread of the loop. Always, after each call: the accounts of the
    module docstring balance, pages of busy leases are not evicted, and `committed` is a position
    from which each component can continue.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        host_pages: int = 0,
        windows: Sequence[WindowGroup] = (),
        state_slots: int = 0,
        host_state_slots: int = 0,
        *,
        has_full_layers: bool = True,
        blanks_pages: bool = False,
    ) -> None:
        """Args:
        pages: of the full group, on the device.
        page_size: tokens of a page.
        host_pages: capacity of the host tier; 0: evicted KV is dropped.
        windows: the groups of layers with a sliding window, in the order of `BatchRow.windows`.
        state_slots: of the recurrent state, on the device; 0: the model has none.
        host_state_slots: in the host tier.
        has_full_layers: if not, the pages of the full group take no memory and are not reported.
        blanks_pages: whether a page or state slot is blanked before its first row (page_moves.py).
        """
        self.page_size = page_size
        self.pool = PagePool(pages)
        self._moves = PageMoves(blanks_pages=blanks_pages)
        self.components = Components(page_size, windows, state_slots, host_state_slots, self._moves)
        self.has_components = bool(self.components)
        """Whether rows carry more than pages of the full group."""
        self.tree = RadixTree(page_size, [component.pool for component in self.components])
        self.host_tier = HostTier(host_pages, page_size, self._moves, self.components)
        self.evicted_pages = 0
        self._leases: set[PageLease] = set()
        self._busy: set[PageLease] = set()
        self._idle: OrderedDict[PageLease, None] = OrderedDict()
        """Idle leases with pages, least recently used first."""
        self._idle_inside: OrderedDict[PageLease, None] = OrderedDict()
        """Idle leases that may be continuable inside an answer, in the same order."""
        self.usage = PageUsage(
            self.pool, self.tree, self.components, self._busy, has_full_layers=has_full_layers
        )

    @classmethod
    def for_geometry(cls, geometry: Geometry, *, blanks_pages: bool = False) -> "SessionAwareCache":
        return cls(
            geometry.pages,
            geometry.page_size,
            geometry.host_pages,
            geometry.windows,
            geometry.state_slots,
            geometry.host_state_slots,
            has_full_layers=geometry.has_full_layers,
            blanks_pages=blanks_pages,
        )

    # ---- the life of a lease --------------------------------------------------------------

    def open(self, scope: str = "") -> PageLease:
        """Open an empty lease. The lease is busy, so that its pages are not evicted until
        `mark_idle`."""
        lease = PageLease(scope)
        for component in self.components:
            component.open(lease)
        self._leases.add(lease)
        self._busy.add(lease)
        return lease

    def match(self, lease: PageLease, ids: "array[int]", limit: int, publish_to: int = 0) -> int:
        """Replace the lease's pages by shared pages of the tree if these cover more of ids[:limit].
        Returns the tokens now committed. Nothing may be in flight. The search begins behind the
        shared pages that the lease has, so that a repeated one is O(pages found). `publish_to`:
        tokens of the lease that will be published as they are computed, so that it can give the
        tree a state where that lacks one."""
        assert lease.reserved == 0
        kept = [] if self.has_components else lease.path[: lease.committed // self.page_size]
        found = self.tree.match(lease.scope, ids, limit, kept)
        if self.has_components:
            depth = self.components.whole_depth(found, len(found))
            self.components.note_branch(lease, min(len(found), publish_to // self.page_size), depth)
            del found[depth:]
        if (len(kept) + len(found)) * self.page_size <= lease.resident_tokens:
            return lease.committed
        self.host_tier.discard(lease)
        self.tree.acquire(found)
        self._release(lease, len(kept))
        lease.path += found
        lease.pages = lease.pages + array("i", [node.page for node in found])
        lease.committed = len(lease.path) * self.page_size
        if self.has_components:
            self.components.adopt(lease, lease.path)
        return lease.committed

    def reserve(self, lease: PageLease, count: int) -> bool:
        """Reserve room for `count` more tokens after those launched, evicting idle pages if
        necessary. Returns False, with nothing reserved, if there is no room. Copies the last shared
        page first if it would be written."""
        assert not lease.host_pages, "host pages must be recalled or discarded first"
        reach, size = lease.committed + lease.reserved, self.page_size
        if (
            reach + count <= len(lease.pages) * size
            and len(lease.path) * size <= reach
            and not self.has_components
        ):
            lease.reserved += count
            return True
        copy = len(lease.path) * size > reach
        needed = self._pages_for(reach + count) - len(lease.pages) + copy
        if self.has_components and not self._make_room_in_components(lease, count, copy=copy):
            return False
        if not self._make_room(needed):
            return False
        if self.has_components:
            for component in self.components:
                component.reserve(lease, count, copy=copy)
        if copy:
            self._copy_last_shared(lease)
        fresh = needed - copy
        if fresh:
            pages = array("i", self.pool.allocate_many(fresh))
            self._moves.blank(pages)
            lease.pages = lease.pages + pages
            self.usage.leased_pages += fresh
        lease.reserved += count
        return True

    def commit(self, lease: PageLease, count: int, kept: int | None = None) -> None:
        """Commit `count` reserved tokens of a collected step. Only the first `kept` are kept (None:
        all), which are fewer than `count` if the log was cut since the launch; none, if the model
        has a recurrent state, which is known only at the end of a step. Pages beyond them are
        released."""
        assert count <= lease.reserved
        start = lease.committed
        lease.reserved -= count
        is_kept = kept is None or kept == count
        if is_kept:
            lease.committed += count
        elif not self.components.states:
            lease.committed += kept or 0
        if self.has_components:
            self.components.commit(lease, start, is_kept=is_kept)
        if not is_kept:
            self._trim(lease)

    def publish(self, lease: PageLease, ids: "array[int]", limit: int) -> None:
        """Move full private pages within ids[:limit] into the tree; the lease then references them
        there. Pages that the tree already has are released to the pool."""
        size = self.page_size
        first, last = len(lease.path), min(limit, lease.committed) // size
        pages = lease.pages
        for index in range(first, last):
            page = pages[index]
            key = ids[index * size : (index + 1) * size].tobytes()
            parent = lease.path[-1] if lease.path else None
            node, taken = self.tree.insert(lease.scope, parent, key, page)
            self.tree.acquire([node])
            self.usage.leased_pages -= 1
            lease.path.append(node)
            if not taken:
                pages = pages[:] if pages is lease.pages else pages
                pages[index] = node.page
                self.pool.release([page])
        lease.pages = pages
        if self.has_components:
            for component in self.components:
                for node in component.publish(lease, lease.path, first):
                    self.tree.offer_unit(node, component.index)

    def rewind(self, lease: PageLease, to: int) -> None:
        """Discard the KV after the first `to` tokens, if there is any. The KV of those tokens is
        kept: a shared page that is cut in its middle is copied when it is next written. If the
        lease is not continuable at `to`, it is rewound to the newest position before at which it
        is."""
        assert lease.reserved == 0
        if lease.host_pages:
            self.host_tier.trim(lease, to)
        if self.has_components:
            lease.branch = lease.branch if lease.branch <= to else 0
            self.components.cut_answer(lease, to)
        if to < lease.committed:
            lease.committed = self.components.rewind(lease, to) if self.has_components else to
            self._trim(lease)

    def fork(self, lease: PageLease, ids: "array[int]", at: int, limit: int) -> PageLease:
        """Open a lease on the KV of ids[:at] (at most the committed tokens).

        Full pages are shared through the tree; only pages within ids[:limit] may be published
        there. If `at` is within a page, that page is shared too if the source has filled it and may
        publish it; else it is copied. Its tokens are recomputed if no page can be freed for the
        copy, or if the source thereby loses what a token at `at` needs. The source must be busy
        (see `mark_busy`); its tokens in flight are not forked.
        """
        assert lease in self._busy
        at = min(at, lease.committed)
        if self.has_components:
            at = self.components.newest_held(lease, at)
        self.publish(lease, ids, min(self._pages_for(at) * self.page_size, limit))
        child = self.open(lease.scope)
        shared = min(len(lease.path), self._pages_for(at))
        copy = shared * self.page_size < at
        if copy and not (self._has_room_for_copy() and self.components.holds(lease, at)):
            at, copy = shared * self.page_size, False
            if self.has_components:
                at = self.components.newest_held(lease, at)
                shared = self._pages_for(at)
        child.path = lease.path[:shared]
        self.tree.acquire(child.path)
        child.pages = lease.pages[:shared]
        child.committed = min(at, shared * self.page_size)
        if copy:
            page = self.pool.allocate()
            self.usage.leased_pages += 1
            self._moves.append(PageMove("copy", lease.pages[len(child.path)], page))
            child.pages.append(page)
            child.committed = at
        for component in self.components:
            component.fork(lease, child, at, copy=copy)
        return child

    def close(self, lease: PageLease, ids: "array[int]", limit: int) -> None:
        """Close the lease. Full pages of ids[:limit] stay in the tree until they are evicted."""
        assert lease.reserved == 0
        self.publish(lease, ids, limit)
        self.host_tier.discard(lease)
        self._release(lease, 0)
        self.components.close(lease)
        self._busy.discard(lease)
        self._leases.remove(lease)

    # ---- idle and busy leases -------------------------------------------------------------

    def mark_idle(self, lease: PageLease) -> None:
        """Make the pages of a lease evictable, because no turn needs them now."""
        assert lease.reserved == 0
        self._busy.discard(lease)
        self._remove_idle(lease)
        if lease.pages:
            self._idle[lease] = None
            if self.has_components and self.components.has_inside(lease):
                self._idle_inside[lease] = None

    def mark_busy(self, lease: PageLease) -> None:
        self._remove_idle(lease)
        self._busy.add(lease)

    def recall(self, lease: PageLease, at: int | None = None) -> bool:
        """Load the lease's spilled pages back to the device, and those marks of its answer for
        which there is room; `at`: a position to which the lease must stay continuable, if there can
        be room for that. If there is no room, discards all, so that the tokens are recomputed, and
        returns False; otherwise returns True, also if no page was spilled. The lease must be
        busy."""
        if not lease.host_pages:
            return True
        assert lease not in self._idle
        self.host_tier.pin(lease)
        marks = self._marks_to_recall(lease, at)
        if marks is None or not self._make_room(len(lease.host_pages)):
            self.host_tier.discard(lease)
            return False
        if self.has_components:
            self.components.restore_marks(lease, marks)
        pages = array("i", self.pool.allocate_many(len(lease.host_pages)))
        self.usage.leased_pages += len(pages)
        self.host_tier.recall(lease, pages)
        lease.pages = lease.pages + pages
        return True

    def reset(self) -> None:
        """Discard all KV, on the device and on the host. Nothing may be in flight. Meanwhile leases
        that share pages lose them one after the other; all stay open."""
        for lease in self._leases:
            assert lease.reserved == 0
            self.host_tier.discard(lease)
            self._release(lease, 0)
        while (page := self.tree.evict()) is not None:
            self.pool.release([page])
        self._moves.clear()

    def take_moves(self) -> list[PageMove]:
        """Return the page moves for the next batch, and clear them."""
        if not self._moves:
            return []
        moves = self._moves.copy()
        self._moves.clear()
        return moves

    # ---- positions ------------------------------------------------------------------------

    @property
    def shares_pages_in_flight(self) -> bool:
        """Whether a page can be matched as soon as it is published. It cannot if the model has a
        recurrent state, which is published at the end of a prompt."""
        return self.components.states is None

    def match_end(self, length: int) -> int:
        """Return how many ids of a log of `length` ids a turn may match. It computes the last one
        again: in a copy of the last shared page, unless it is continuable at few positions."""
        return length - 1 if self.has_components else length

    def prefill_end(self, length: int) -> int:
        """Return how many tokens of a log of `length` ids are worth computing before a turn begins.
        A turn computes the last one again, and keeps a mark at the last page boundary before it; a
        model that needs marks stops there."""
        return self.components.last_boundary(length) if self.has_components else length

    def has_in_flight(self) -> bool:
        """Return whether any lease has tokens in flight."""
        return any(lease.reserved for lease in self._busy)

    def audit(self) -> None:
        """Check that every page has one owner, that reference counts match the leases, and that
        every lease has exactly the pages for its launched tokens (the tail rule of `PageLease`).
        O(pages). Raises AssertionError."""
        nodes = list(self.tree.nodes())
        owned = self.pool.free_pages() + [node.page for node in nodes]
        references: dict[int, int] = {}
        for lease in self._leases:
            owned.extend(lease.pages[len(lease.path) :])
            assert list(lease.pages[: len(lease.path)]) == [node.page for node in lease.path]
            assert len(lease.pages) == self._pages_for(lease.launched), "the tail rule is broken"
            for node in lease.path:
                references[id(node)] = references.get(id(node), 0) + 1
        assert sorted(owned) == list(range(self.pool.total)), "a page is lost or owned twice"
        assert all(node.ref_count == references.pop(id(node), 0) for node in nodes), (
            "reference counts do not match the leases"
        )
        assert not references, "a lease references a node that is not in the tree"
        assert self.tree.size == len(nodes)
        assert self.tree.unreferenced == sum(node.ref_count == 0 for node in nodes)
        assert self.pool.free_count + self.tree.size + self.usage.leased_pages == self.pool.total
        slots = self.host_tier.pool.free_pages()
        for lease in self._leases:
            slots.extend(lease.host_pages)
            if lease.host_pages:
                assert lease.committed == len(lease.pages) * self.page_size, "gap before host pages"
                assert len(lease.host_pages) == self._pages_for(lease.host_end) - len(lease.pages)
        assert sorted(slots) == list(range(self.host_tier.pool.total)), (
            "a host page is lost or owned twice"
        )
        self.components.audit(self._leases, nodes, self.tree)
        assert self._busy <= self._leases
        assert self._idle.keys() == {x for x in self._leases - self._busy if x.pages}
        assert self._idle_inside.keys() <= self._idle.keys()
        assert self._idle_inside.keys() >= {x for x in self._idle if len(x.marks) > 1}

    # ---- inside ---------------------------------------------------------------------------

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _remove_idle(self, lease: PageLease) -> None:
        self._idle.pop(lease, None)
        self._idle_inside.pop(lease, None)

    def _trim(self, lease: PageLease) -> None:
        keep = self._pages_for(lease.launched)
        if keep < len(lease.pages):
            self._release(lease, keep)

    def _release(self, lease: PageLease, keep: int) -> None:
        """Release the lease's pages after the first `keep`."""
        shared = len(lease.path)
        private = lease.pages[max(keep, shared) :]
        self.pool.release(private)
        self.usage.leased_pages -= len(private)
        if keep < shared:
            self.tree.release(lease.path[keep:])
            del lease.path[keep:]
        lease.pages = lease.pages[:keep]
        if not keep:
            self._remove_idle(lease)
            if self.has_components:
                self.components.release(lease)
        lease.committed = min(lease.committed, keep * self.page_size)

    def _copy_last_shared(self, lease: PageLease) -> None:
        node = lease.path.pop()
        page = self.pool.allocate()
        self.usage.leased_pages += 1
        self._moves.append(PageMove("copy", node.page, page))
        lease.pages = lease.pages[:]
        lease.pages[len(lease.path)] = page
        self.tree.release([node])

    def _make_room(self, needed: int) -> bool:
        """Evict tree pages, then idle leases, until `needed` pages are free. Meanwhile a lease that
        is evicted leaves pages to the tree; these are next. Returns False if it is impossible."""
        while self.pool.free_count < needed:
            page = self.tree.evict()
            if page is not None:
                self.evicted_pages += 1
                self.pool.release([page])
            elif self._idle:
                self._evict_tail(next(iter(self._idle)), needed - self.pool.free_count)
            else:
                return False
        return True

    def _make_room_in(self, component: Component, needed: int) -> bool:
        """Evict until `needed` units of a component are free. Returns False if that is impossible.

        Units of the tree go first, then idle leases as a whole, as far as the host can take them
        with all their marks. Then go the marks that the other idle leases have inside their
        answers, these leases as a whole, states where prompts of leases branch, and the marks of
        busy leases. Idle leases may meanwhile lose all they have, on the host too.
        """
        while component.pool.free_count < needed:
            if self._evict_unit_from_tree(component):
                continue
            if not self._idle:
                if not self.tree.evict_unit(component.index) and not self.components.drop_marks():
                    return False
                continue
            lease = next(iter(self._idle))
            if self.host_tier.has_room_for(lease) or not self._idle_inside:
                self._evict_whole(lease)
            else:
                lease = next(iter(self._idle_inside))
                self.components.drop_inside(lease)
                if not self.components.has_inside(lease):
                    del self._idle_inside[lease]
        return True

    def _evict_unit_from_tree(self, component: Component) -> bool:
        """Evict a unit from the tree, but no state where prompts of leases branch: without it, each
        further session would compute their head."""
        is_state = component is self.components.states
        return self.tree.evict_unit(component.index, keeps_branches=is_state)

    def _make_room_at(self, positions: Sequence[int]) -> bool:
        """Make room for what a lease without parts needs at `positions`."""
        return all(
            self._make_room_in(component, len(places_of(component, positions)))
            for component in self.components
        )

    def _marks_to_recall(self, lease: PageLease, at: int | None) -> list[int] | None:
        """Make room for what a spilled lease needs at its end. Returns those of its marks for which
        there is room too, with nothing but units of the tree evicted; that before `at` may evict
        others. Those may meanwhile discard marks of each other on the host, but none of this lease,
        which is pinned. Returns None if there is no room at all."""
        marks = [] if at is None else [mark for mark in lease.host_marks if mark <= at][-1:]
        if not self._make_room_at([lease.host_end, *marks]):
            marks = []
            if not self._make_room_at([lease.host_end]):
                return None
        for mark in lease.host_marks:
            is_of_use = mark >= lease.anchor and mark not in marks
            if is_of_use and self._make_shared_room_at([lease.host_end, *marks, mark]):
                marks.append(mark)
        return sorted(marks)

    def _make_shared_room_at(self, positions: Sequence[int]) -> bool:
        """Make room like `_make_room_at`, in the tree alone: no lease changes meanwhile."""
        for component in self.components:
            needed = len(places_of(component, positions))
            while component.pool.free_count < needed:
                if not self._evict_unit_from_tree(component):
                    return False
        return True

    def _make_room_in_components(self, lease: PageLease, count: int, *, copy: bool) -> bool:
        return all(
            self._make_room_in(component, component.units_needed(lease, count, copy=copy))
            for component in self.components
        )

    def _has_room_for_copy(self) -> bool:
        return all(self._make_room_in(x, 1) for x in self.components.windows) and self._make_room(1)

    def _evict_tail(self, lease: PageLease, pages: int) -> None:
        """Evict up to `pages` pages from the tail of an idle lease, spilling them if the host tier
        has room. Shared pages that no other lease references are left to the tree, which evicts
        them next; a lease without such pages releases all of its pages. So does one with parts of
        other components, which could not be continued from a part of its pages."""
        if self.has_components:
            self._evict_whole(lease)
            return
        taken = min(pages, lease.private_pages or self.usage.exclusive_pages(lease))
        if lease.private_pages:
            self.evicted_pages += taken
        keep = len(lease.pages) - taken if taken else 0
        if self.host_tier.pool.total:
            self.host_tier.spill(lease, lease.pages[keep:])
        self._release(lease, keep)

    def _evict_whole(self, lease: PageLease) -> None:
        self.evicted_pages += lease.private_pages
        if self.host_tier.pool.total:
            self.host_tier.spill(lease, lease.pages)
        self._release(lease, 0)

"""PageUsage: how many pages of a SessionAwareCache are free, held, or could be freed."""

from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple

from continuo.engine.core.cache.components import Components
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_pool import PagePool
from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree


class PageCounts(NamedTuple):
    """free + tree + leased == total. A page that the tree and leases share counts as the tree's."""

    total: int
    free: int
    tree: int
    leased: int


class PageUsage:
    def __init__(
        self,
        pool: PagePool,
        tree: RadixTree,
        components: Components,
        busy: set[PageLease],
        *,
        has_full_layers: bool,
    ) -> None:
        """Args:
        pool: the pages of the full group on the device; only counted here.
        tree: the shared pages of all groups; only counted here.
        components: the components of the model, which count their own pools.
        busy: the busy leases: the set of the cache itself, which changes it.
        has_full_layers: False: the pages of the full group take no memory and are not reported.
        """
        self.leased_pages = 0
        """Private pages of all leases, in the full group."""
        self._pool = pool
        self._tree = tree
        self._components = components
        self._busy = busy
        self._has_full_layers = has_full_layers

    def available_pages(self, freed: Collection[PageLease] = ()) -> int:
        """Return the number of pages that are free after all idle ones are evicted, and those of
        the busy leases `freed`: an upper bound, exact if the busy leases that share pages share
        them as one path. O(busy leases)."""
        shared: dict[RadixNode, int] = {}
        """The most pages that a busy lease shares with another lease, by their first page."""
        exclusive = 0
        for lease in self._busy.difference(freed):
            pages = self.exclusive_pages(lease)
            exclusive += pages
            if pages < len(lease.pages):
                first = lease.path[0]
                shared[first] = max(shared.get(first, 0), len(lease.pages) - pages)
        return self._pool.total - exclusive - sum(shared.values())

    def exclusive_pages(self, lease: PageLease) -> int:
        """Return the pages that no other lease references: those that could be evicted if this
        lease were idle. O(log pages)."""
        path = lease.path
        if not path or path[-1].ref_count > 1:
            return lease.private_pages
        return len(lease.pages) - bisect_left(path, True, key=_has_one_reference)

    def count_new_pages(self, lease: PageLease, tokens: int) -> int:
        """Return the pages that the lease lacks for its first `tokens` tokens."""
        return max(-(-tokens // self._tree.page_size) - len(lease.pages), 0)

    def have_components_room(self, tokens: int, freed: Collection[PageLease] = ()) -> bool:
        """Return whether a lease of `tokens` tokens could get its part of the other components, if
        all idle leases were evicted, and the busy ones `freed`. An upper bound."""
        return self._components.have_room_for(tokens, self._busy.difference(freed))

    def count_pages(self) -> PageCounts:
        """Count the pages of all groups that take memory; O(1)."""
        tree, windows = self._tree, self._components.windows
        pools = [x.pool for x in windows]
        in_tree = [tree.unit_counts[x.index] for x in windows]
        if self._has_full_layers:
            pools = [self._pool, *pools]
            in_tree = [tree.size, *in_tree]
        total, free = sum(pool.total for pool in pools), sum(pool.free_count for pool in pools)
        return PageCounts(total, free, sum(in_tree), total - free - sum(in_tree))

    def scarcest(self) -> PageCounts:
        """Count the units of the pool of which the largest share is leased; O(1). Pages of the full
        group that leases share through the tree count as leased."""
        counts: list[PageCounts] = []
        for component in self._components:
            pool, in_tree = component.pool, self._tree.unit_counts[component.index]
            leased = pool.total - pool.free_count - in_tree
            counts.append(PageCounts(pool.total, pool.free_count, in_tree, leased))
        if self._has_full_layers or not counts:
            size, pool = self._tree.size, self._pool
            referenced = size - self._tree.unreferenced
            leased = self.leased_pages + referenced
            counts.insert(0, PageCounts(pool.total, pool.free_count, size - referenced, leased))
        return max(counts, key=lambda x: x.leased / max(x.total, 1))

    def held_pages(self, lease: PageLease) -> int:
        """Count the pages that a lease holds, shared ones included, in all groups that take
        memory."""
        full = len(lease.pages) if self._has_full_layers else 0
        return full + sum(x.page_count(lease) for x in self._components.windows)

    def held_host_pages(self, lease: PageLease) -> int:
        full = len(lease.host_pages) if self._has_full_layers else 0
        windows = lease.host_units[: len(self._components.windows)]
        return full + sum(map(len, windows))


def _has_one_reference(node: RadixNode) -> bool:
    return node.ref_count <= 1

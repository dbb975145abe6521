"""RadixTree: shared read-only pages, found by their whole prefix; reference-counted.

One node is one full page. Its path in the tree is the ids of all pages before it, so leases with
the same prefix, page for page, read the same memory. Each cache scope has a root of its own, so
pages are never shared across scopes.

    root(scope) ── [ids 0..15] ── [ids 16..31] ── [ids 32..47]
                                └ [ids 16..31'] …

A lease references every node of its path, so `ref_count` never increases from parent to child, and
unreferenced nodes are always below referenced ones. Only unreferenced leaves are evicted, least
recently used first, hence never a page whose continuation is still cached.
"""

import heapq
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from continuo.engine.core.cache.shared_pool import SharedPool

CONTINUATION_PAGES_MAX = 256
"""Maximum pages that a search for the continuation of a log follows beyond the known ones."""
CONTINUATION_CHILDREN_MAX = 16
"""Maximum pages that it compares at each place, the newest first."""


class RadixNode:
    """A shared page. `key` is the page's ids as bytes (that of a root: the scope); `last_used` is
    the tree's tick count at the last acquire or release."""

    __slots__ = ("children", "key", "last_used", "page", "parent", "ref_count", "units")

    def __init__(
        self, page: int, key: bytes, parent: "RadixNode | None", units: Sequence[int] = ()
    ) -> None:
        self.page = page
        self.key = key
        self.parent = parent
        self.children: dict[bytes, RadixNode] = {}
        self.ref_count = 0
        self.last_used = 0
        self.units = list(units)
        """Unit of each component; -1: none."""

    def find_newest_child(self, beginning: bytes) -> "RadixNode | None":
        """Return the newest child whose key begins so, among CONTINUATION_CHILDREN_MAX; None if
        there is none."""
        newest = islice(reversed(self.children.values()), CONTINUATION_CHILDREN_MAX)
        return next((child for child in newest if child.key.startswith(beginning)), None)


class RadixTree:
    """The shared pages of all scopes, as a tree of one node for each page.

    Owns the pages of its nodes, and their units of the components, until `evict` returns them.
    Called by SessionAwareCache, the components and, to read only, by lookups of drafts and of
    prefixes in flight. Always: `ref_count` does not increase from parent to child; a node with
    references is not evicted; and `size` and `unreferenced` count the nodes.
    """

    def __init__(self, page_size: int, unit_pools: Sequence[SharedPool] = ()) -> None:
        """`unit_pools`: the pool of each other component."""
        self.page_size = page_size
        self.size = 0
        self.unreferenced = 0
        self._roots: dict[str, RadixNode] = {}
        self._tick = 0
        self._evictable: list[tuple[int, int, RadixNode]] = []
        """Heap of (last_used, tie-breaker, node); entries whose node has changed are skipped."""
        self._pushes = 0
        self._unit_pools = unit_pools
        self.unit_counts = [0] * len(unit_pools)
        """Units of each component that nodes hold."""
        self._no_units = [-1] * len(unit_pools)
        self._evictable_units: list[list[tuple[int, int, RadixNode]]] = [[] for _ in unit_pools]
        """For each component, a heap of (last_used, tie-breaker, node) with one entry for each node
        that holds a unit; `last_used` may be out of date."""

    def match(
        self, scope: str, ids: "array[int]", limit: int, known: Sequence[RadixNode] = ()
    ) -> list[RadixNode]:
        """Return the longest shared path of full pages within ids[:limit], without acquiring it.
        `known` is the begin of that path, if the caller has one already; it is not returned."""
        path: list[RadixNode] = []
        node = known[-1] if known else self._roots.get(scope)
        size = self.page_size
        for start in range(len(known) * size, limit - size + 1, size):
            if node is None:
                break
            node = node.children.get(ids[start : start + size].tobytes())
            if node is not None:
                path.append(node)
        return path

    def find_continuation(
        self, scope: str, ids: "array[int]", known: Sequence[RadixNode], count: int
    ) -> "array[int]":
        """Return up to `count` ids that follow `ids` in the tree, by the newest of its pages.
        Returns none if the tree does not have all of `ids`. `known`: the path of their first pages;
        at most CONTINUATION_PAGES_MAX more are followed."""
        size, found = self.page_size, array("i")
        if len(known) * size > len(ids):
            known = known[: len(ids) // size]
        limit = min(len(ids), (len(known) + CONTINUATION_PAGES_MAX) * size)
        path = self.match(scope, ids, limit, known) or known
        node = path[-1] if path else self._roots.get(scope)
        depth = len(path) if path is known else len(known) + len(path)
        rest = ids[depth * size :].tobytes()
        while node is not None and len(found) < count:
            node = node.find_newest_child(rest)
            if node is not None:
                found.frombytes(node.key[len(rest) :])
                rest = b""
        return found[:count]

    def insert(
        self, scope: str, parent: RadixNode | None, key: bytes, page: int
    ) -> tuple[RadixNode, bool]:
        """Return the node for `key` below `parent` (None: the scope's root), and whether the node
        is new. The tree takes ownership of `page` only if the node is new."""
        above = parent or self._roots.get(scope)
        if above is None:
            above = self._roots[scope] = RadixNode(-1, scope.encode(), None)
        node = above.children.get(key)
        if node is not None:
            return node, False
        node = above.children[key] = RadixNode(page, key, above, self._no_units)
        self.size += 1
        self._mark_unreferenced(node)
        return node, True

    def acquire(self, nodes: Sequence[RadixNode]) -> None:
        self._tick += 1
        for node in nodes:
            if node.ref_count == 0:
                self.unreferenced -= 1
            node.ref_count += 1
            node.last_used = self._tick

    def release(self, nodes: Sequence[RadixNode]) -> None:
        """Decrement the reference counts of `nodes`, a path or the end of one in order. Nodes
        without references stay in the tree until they are evicted."""
        self._tick += 1
        for node in reversed(nodes):
            node.ref_count -= 1
            node.last_used = self._tick
            assert node.ref_count >= 0, "a node was released more often than acquired"
            if node.ref_count == 0:
                self._mark_unreferenced(node)

    def evict(self) -> int | None:
        """Evict the least recently used unreferenced leaf. Returns its page, or None if there is no
        such leaf."""
        while self._evictable:
            entry = heapq.heappop(self._evictable)
            if not self._is_current(entry):
                continue
            node = entry[2]
            parent, node.parent = node.parent, None
            assert parent is not None
            del parent.children[node.key]
            self.size -= 1
            self.unreferenced -= 1
            for component in range(len(self._unit_pools)):
                self._drop_unit(node, component)
            if parent.parent is not None and not parent.ref_count:
                self._push_evictable(parent)
            elif parent.parent is None and not parent.children:
                del self._roots[parent.key.decode()]
            return node.page
        return None

    def offer_unit(self, node: RadixNode, component: int) -> None:
        """Make a unit that was just given to a node evictable."""
        self.unit_counts[component] += 1
        self._push_unit(node, component)

    def _push_unit(self, node: RadixNode, component: int) -> None:
        self._pushes += 1
        entry = (node.last_used, self._pushes, node)
        heapq.heappush(self._evictable_units[component], entry)

    def evict_unit(self, component: int, *, keeps_branches: bool = False) -> bool:
        """Evict the unit of the node that was used least recently. It is free then, unless a lease
        holds it too. Returns False if no node holds a unit of the component; with `keeps_branches`,
        if none does but those where the paths of several leases part or end."""
        heap = self._evictable_units[component]
        kept: list[tuple[int, int, RadixNode]] = []
        is_evicted = False
        while heap and not is_evicted:
            entry = heapq.heappop(heap)
            used, _, node = entry
            if node.units[component] < 0:
                continue
            if used != node.last_used:
                self._push_unit(node, component)
            elif keeps_branches and node.ref_count > 1 and len(node.children) != 1:
                kept.append(entry)
            else:
                self._drop_unit(node, component)
                is_evicted = True
        for entry in kept:
            heapq.heappush(heap, entry)
        return is_evicted

    def _drop_unit(self, node: RadixNode, component: int) -> None:
        unit, node.units[component] = node.units[component], -1
        if unit >= 0:
            self.unit_counts[component] -= 1
            self._unit_pools[component].release(unit)

    def nodes(self) -> Iterator[RadixNode]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _mark_unreferenced(self, node: RadixNode) -> None:
        self.unreferenced += 1
        self._push_evictable(node)

    def _push_evictable(self, node: RadixNode) -> None:
        """Make a node evictable if it is a leaf; other nodes become evictable when their last child
        is evicted."""
        if node.children:
            return
        self._pushes += 1
        heapq.heappush(self._evictable, (node.last_used, self._pushes, node))
        if len(self._evictable) > 2 * self.unreferenced + 64:
            self._evictable = [entry for entry in self._evictable if self._is_current(entry)]
            heapq.heapify(self._evictable)

    def _is_current(self, entry: tuple[int, int, RadixNode]) -> bool:
        used, _, node = entry
        return (
            used == node.last_used
            and not node.ref_count
            and not node.children
            and node.parent is not None
        )

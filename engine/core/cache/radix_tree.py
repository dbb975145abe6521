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


class RadixNode:
    """A shared page. `key` is the page's ids as bytes; `last_used` is the tree's tick count at the
    last acquire or release."""

    __slots__ = ("children", "key", "last_used", "page", "parent", "ref_count")

    def __init__(self, page: int, key: bytes, parent: "RadixNode | None") -> None:
        self.page = page
        self.key = key
        self.parent = parent
        self.children: dict[bytes, RadixNode] = {}
        self.ref_count = 0
        self.last_used = 0


class RadixTree:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.size = 0
        self.unreferenced = 0
        self._roots: dict[str, RadixNode] = {}
        self._tick = 0
        self._evictable: list[tuple[int, int, RadixNode]] = []
        """Heap of (last_used, tie-breaker, node); entries whose node has changed are skipped."""
        self._pushes = 0

    def match(self, scope: str, ids: "array[int]", limit: int) -> list[RadixNode]:
        """Return the longest shared path of full pages within ids[:limit], without acquiring it."""
        path: list[RadixNode] = []
        node = self._roots.get(scope)
        size = self.page_size
        for start in range(0, limit - size + 1, size):
            if node is None:
                break
            node = node.children.get(ids[start : start + size].tobytes())
            if node is not None:
                path.append(node)
        return path

    def insert(
        self, scope: str, parent: RadixNode | None, key: bytes, page: int
    ) -> tuple[RadixNode, bool]:
        """Return the node for `key` below `parent` (None: the scope's root), and whether the node
        is new. The tree takes ownership of `page` only if the node is new."""
        above = parent or self._roots.setdefault(scope, RadixNode(-1, b"", None))
        node = above.children.get(key)
        if node is not None:
            return node, False
        node = above.children[key] = RadixNode(page, key, above)
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
            if parent.parent is not None and not parent.ref_count:
                self._push_evictable(parent)
            elif parent.parent is None and not parent.children:
                self._remove_root(parent)
            return node.page
        return None

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

    def _remove_root(self, root: RadixNode) -> None:
        for scope, candidate in self._roots.items():
            if candidate is root:
                del self._roots[scope]
                return

"""Tests of the radix tree: order of eviction, references, and matches."""

from array import array

from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree

SIZE = 2


def insert_branch(tree: RadixTree, ids: list[int], first_page: int) -> list[RadixNode]:
    """Insert and acquire a path of full pages, numbered from `first_page`."""
    path: list[RadixNode] = []
    for index in range(len(ids) // SIZE):
        key = array("i", ids[index * SIZE : (index + 1) * SIZE]).tobytes()
        node, _ = tree.insert("", path[-1] if path else None, key, first_page + index)
        path.append(node)
    tree.acquire(path)
    return path


def evict_all(tree: RadixTree) -> list[int]:
    pages: list[int] = []
    while (page := tree.evict()) is not None:
        pages.append(page)
    return pages


def test_least_recently_used_page_is_evicted_first() -> None:
    tree = RadixTree(SIZE)
    branches = [insert_branch(tree, [n, n], n) for n in range(4)]
    for n in (2, 0, 3, 1):
        tree.release(branches[n])
    tree.acquire(branches[0])  # it is used again
    tree.release(branches[0])
    assert evict_all(tree) == [2, 3, 1, 0]
    assert (tree.size, tree.unreferenced) == (0, 0)


def test_child_page_is_evicted_before_its_parent() -> None:
    tree = RadixTree(SIZE)
    tree.release(insert_branch(tree, [1, 1, 2, 2, 3, 3], 0))
    assert evict_all(tree) == [2, 1, 0]


def test_never_acquired_child_is_evicted_before_its_parent() -> None:
    tree = RadixTree(SIZE)
    parent, inserted = tree.insert("", None, b"a", 0)
    assert inserted
    tree.insert("", parent, b"b", 1)
    assert tree.unreferenced == 2
    assert evict_all(tree) == [1, 0]


def test_acquired_page_and_its_ancestors_are_not_evicted() -> None:
    tree = RadixTree(SIZE)
    long = insert_branch(tree, [1, 1, 2, 2], 0)
    short = insert_branch(tree, [1, 1], 9)
    assert short == long[:1], "the same past is the same node"
    tree.release(long)
    assert evict_all(tree) == [1]
    assert (tree.size, tree.unreferenced) == (1, 0)
    tree.release(short)
    assert evict_all(tree) == [0]


def test_match_returns_full_pages_within_limit_and_scope() -> None:
    tree = RadixTree(SIZE)
    path = insert_branch(tree, [1, 1, 2, 2, 3, 3], 0)
    ids = array("i", [1, 1, 2, 2, 3, 3, 4, 4])
    assert [len(tree.match("", ids, limit)) for limit in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert tree.match("", ids, 8) == path
    assert tree.match("other", ids, 8) == []
    assert tree.match("", array("i", [1, 1, 3, 3]), 4) == path[:1]

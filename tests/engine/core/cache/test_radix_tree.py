"""The tree alone: which page goes first, and which may not go."""

from array import array

from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree

SIZE = 2


def branch(tree: RadixTree, ids: list[int], first_page: int) -> list[RadixNode]:
    """A path of full pages, numbered from `first_page`; held."""
    path: list[RadixNode] = []
    for index in range(len(ids) // SIZE):
        key = array("i", ids[index * SIZE : (index + 1) * SIZE]).tobytes()
        node, _ = tree.insert("", path[-1] if path else None, key, first_page + index)
        path.append(node)
    tree.acquire(path)
    return path


def all_evicted(tree: RadixTree) -> list[int]:
    pages: list[int] = []
    while (page := tree.evict()) is not None:
        pages.append(page)
    return pages


def test_the_least_recently_used_goes_first() -> None:
    tree = RadixTree(SIZE)
    branches = [branch(tree, [n, n], n) for n in range(4)]
    for n in (2, 0, 3, 1):
        tree.release(branches[n])
    tree.acquire(branches[0])  # it is used again
    tree.release(branches[0])
    assert all_evicted(tree) == [2, 3, 1, 0]
    assert (tree.size, tree.unreferenced) == (0, 0)


def test_a_page_goes_after_what_continues_it() -> None:
    tree = RadixTree(SIZE)
    tree.release(branch(tree, [1, 1, 2, 2, 3, 3], 0))
    assert all_evicted(tree) == [2, 1, 0]


def test_a_page_that_nobody_held_goes_after_what_continues_it() -> None:
    tree = RadixTree(SIZE)
    above, taken = tree.insert("", None, b"a", 0)
    assert taken
    tree.insert("", above, b"b", 1)
    assert tree.unreferenced == 2
    assert all_evicted(tree) == [1, 0]


def test_a_held_page_does_not_go_nor_what_it_goes_on_from() -> None:
    tree = RadixTree(SIZE)
    long = branch(tree, [1, 1, 2, 2], 0)
    short = branch(tree, [1, 1], 9)
    assert short == long[:1], "the same past is the same node"
    tree.release(long)
    assert all_evicted(tree) == [1]
    assert (tree.size, tree.unreferenced) == (1, 0)
    tree.release(short)
    assert all_evicted(tree) == [0]


def test_a_match_is_full_pages_within_the_limit_and_the_scope() -> None:
    tree = RadixTree(SIZE)
    path = branch(tree, [1, 1, 2, 2, 3, 3], 0)
    ids = array("i", [1, 1, 2, 2, 3, 3, 4, 4])
    assert [len(tree.match("", ids, limit)) for limit in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert tree.match("", ids, 8) == path
    assert tree.match("other", ids, 8) == []
    assert tree.match("", array("i", [1, 1, 3, 3]), 4) == path[:1]

"""WindowPages: the pages of one window group, whose tokens attend to the last `window` positions.

    position   0 ......... mark ................ committed ...... launched
    pages                [m][m]        [live][live][live][live][live]
                                       first

A lease holds the pages from the window of its newest position on, and, for each mark, those of the
window before the mark; of the newest answer, all (marks.py). A page that no later token can see is
released when the tokens that slide it out of the window are committed. Page numbers are those of
the lease's `pages`: the page at index i holds the positions [i * P, (i + 1) * P) in every group.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence

from continuo.engine.batch import PageMove, WindowTable
from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_moves import PageMoves
from continuo.engine.core.cache.page_pool import PagePool
from continuo.engine.core.cache.radix_tree import RadixNode
from continuo.engine.core.cache.shared_pool import SharedPool


class WindowPart:
    """The pages of one window group that a lease holds."""

    __slots__ = ("first", "pages", "retained")

    def __init__(self) -> None:
        self.first = 0
        """Index of the first of `pages`."""
        self.pages: array[int] = array("i")
        """Pages from `first` up to the end of the launched tokens; replaced, not mutated."""
        self.retained: dict[int, int] = {}
        """Pages before `first` that a mark needs, by index."""

    def page_at(self, index: int) -> int | None:
        if self.first <= index < self.first + len(self.pages):
            return self.pages[index - self.first]
        return self.retained.get(index)


class WindowPages:
    """The component of one window group: its pages on the device and in host memory.

    Owns the pages of its two pools; leases and tree nodes refer to them by number. Called as a
    Component, by the other parts of the cache only. Always, between steps: a lease holds the pages
    of the window before `committed` and before each mark, and none that no later token can see
    after a rewind to a mark or into the newest answer;
    `free + held == total` in the pool.
    """

    def __init__(
        self,
        index: int,
        window: int,
        page_size: int,
        pages: int,
        host_pages: int,
        moves: PageMoves,
    ) -> None:
        """Args:
        index: index of the group in `Geometry.windows`, and of its part in each lease.
        window: positions to which a token attends, its own included.
        page_size: tokens of a page.
        pages: size of the pool on the device, in pages.
        host_pages: size of the pool in host memory, in pages; 0: no page is spilled.
        moves: as in `Components`.
        """
        self.index, self.group = index, index + 1
        self.window = window
        self.pool = SharedPool(pages)
        self.host_pool = PagePool(host_pages)
        self._page_size = page_size
        self._moves = moves

    def open(self, lease: PageLease) -> None:
        lease.parts.append(WindowPart())

    def table(self, lease: PageLease) -> WindowTable:
        part = self._part(lease)
        return WindowTable(part.first, part.pages)

    def page_count(self, lease: PageLease) -> int:
        part = self._part(lease)
        return len(part.pages) + len(part.retained)

    def units_needed(self, lease: PageLease, count: int, *, copy: bool) -> int:
        part = self._part(lease)
        end = self._pages_for(lease.launched + count)
        return end - part.first - len(part.pages) + copy

    def room_of_a_row(self, lease: PageLease) -> int:
        """Return the position up to which the whole pool would hold the next row of a lease, with
        one page left to copy a shared one to."""
        return (self._part(lease).first + self.pool.total - 1) * self._page_size

    def units_of_a_row(self, tokens: int) -> int:
        return self._pages_for(tokens) - self._first_needed(tokens - 1)

    def units_of(self, lease: PageLease) -> int:
        return len(self._part(lease).pages)

    def reserve(self, lease: PageLease, count: int, *, copy: bool) -> None:
        part = self._part(lease)
        fresh = self.units_needed(lease, count, copy=False)
        if copy:
            last = part.pages[-1]
            page = self.pool.allocate()
            self._moves.append(PageMove("copy", last, page, self.group))
            part.pages = part.pages[:-1] + array("i", [page])
            self.pool.release(last)
        if fresh:
            pages = array("i", [self.pool.allocate() for _ in range(fresh)])
            self._moves.blank(pages, self.group)
            part.pages = part.pages + pages

    def commit(self, lease: PageLease, start: int, *, is_kept: bool) -> None:
        del start
        part = self._part(lease)
        if not is_kept:
            self._truncate(part, self._pages_for(lease.launched))
        first = self._first_needed(lease.committed)
        if first > part.first:
            self._advance(lease, part, first)

    def holds(self, lease: PageLease, position: int) -> bool:
        part = self._part(lease)
        return all(part.page_at(index) is not None for index in self.places(position))

    def rewind(self, lease: PageLease, to: int) -> None:
        part = self._part(lease)
        needed = self.places(to)
        self._truncate(part, needed.stop)
        if needed.start < part.first:
            passed = range(needed.start, min(part.first, needed.stop))
            part.pages = array("i", [part.retained.pop(n) for n in passed]) + part.pages
            part.first = needed.start

    def settle(self, lease: PageLease) -> None:
        part, answer = self._part(lease), self._answer_pages(lease)
        passed = [n for n in part.retained if n not in answer]
        for index in [n for n in passed if not self._is_needed(lease, n)]:
            self.pool.release(part.retained.pop(index))

    def release(self, lease: PageLease) -> None:
        part = self._part(lease)
        for page in (*part.pages, *part.retained.values()):
            self.pool.release(page)
        lease.parts[self.index] = WindowPart()

    def publish(self, lease: PageLease, path: Sequence[RadixNode], first: int) -> list[RadixNode]:
        part = self._part(lease)
        extended: list[RadixNode] = []
        for index in range(first, len(path)):
            page = part.page_at(index)
            if page is not None and path[index].units[self.index] < 0:
                path[index].units[self.index] = self.pool.share(page)
                extended.append(path[index])
        return extended

    def whole_depth(self, path: Sequence[RadixNode], depth: int) -> int:
        missing = depth
        while missing is not None:
            depth = missing
            needed = self.places(depth * self._page_size)
            missing = next((n for n in reversed(needed) if path[n].units[self.index] < 0), None)
        return depth

    def adopt(self, lease: PageLease, path: Sequence[RadixNode]) -> None:
        part = self._part(lease)
        needed = self.places(len(path) * self._page_size)
        part.first = needed.start
        part.pages = array("i", [self.pool.share(path[n].units[self.index]) for n in needed])

    def fork(self, lease: PageLease, child: PageLease, at: int, *, copy: bool) -> None:
        part, needed = self._part(child), self.places(at)
        pages = [self.unit_at(lease, index) for index in needed]
        if copy:
            fresh = self.pool.allocate()
            self._moves.append(PageMove("copy", pages.pop(), fresh, self.group))
            part.pages = array("i", [*map(self.pool.share, pages), fresh])
        else:
            part.pages = array("i", map(self.pool.share, pages))
        part.first = needed.start

    def places(self, position: int) -> range:
        return range(self._first_needed(position), self._pages_for(position))

    def unit_at(self, lease: PageLease, place: int) -> int:
        page = self._part(lease).page_at(place)
        assert page is not None, "the window of a position is not held"
        return page

    def restore(self, lease: PageLease, units: Mapping[int, int]) -> None:
        part = self._part(lease)
        needed = self.places(lease.committed)
        part.first = needed.start
        part.pages = array("i", [units[index] for index in needed])
        part.retained = {index: page for index, page in units.items() if index < part.first}

    def audit(self, leases: Iterable[PageLease], nodes: Iterable[RadixNode]) -> None:
        held = [node.units[self.index] for node in nodes if node.units[self.index] >= 0]
        for lease in leases:
            part = self._part(lease)
            held += [*part.pages, *part.retained.values()]
            assert part.first == self._first_needed(lease.committed), "the floor of a window"
            end = part.first + len(part.pages)
            assert end == self._pages_for(lease.launched), "the tail rule of a window is broken"
            needed = {index for mark in lease.marks for index in self.places(mark)}
            needed = {index for index in needed if index < part.first}
            assert needed <= part.retained.keys(), "the windows of the marks"
            answer = self._answer_pages(lease)
            assert all(n < part.first for n in part.retained), "a page is held twice"
            assert all(n in answer for n in part.retained.keys() - needed), "pages of no use"
            shared = {page for page in part.pages if self.pool.holders[page] > 1}
            private = part.pages[max(len(lease.path) - part.first, 0) :]
            assert not shared.intersection(private), "a writable page has two holders"
        self.pool.audit(held)

    # ---- inside ---------------------------------------------------------------------------

    def _part(self, lease: PageLease) -> WindowPart:
        part = lease.parts[self.index]
        assert isinstance(part, WindowPart)
        return part

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _first_needed(self, position: int) -> int:
        """Return the index of the first page that a token at `position` attends to or is written
        to."""
        return max(position - self.window + 1, 0) // self._page_size

    def _is_needed(self, lease: PageLease, index: int) -> bool:
        """Return whether a token at a mark, or in the newest answer, attends to a page."""
        return index in self._answer_pages(lease) or any(
            index in self.places(mark) for mark in lease.marks
        )

    def _answer_pages(self, lease: PageLease) -> range:
        answer = lease.answer
        if not answer:
            return range(0)
        return range(self._first_needed(answer.start), self._pages_for(answer.stop))

    def _truncate(self, part: WindowPart, end: int) -> None:
        """Release the pages from index `end` on."""
        for index in [n for n in part.retained if n >= end]:
            self.pool.release(part.retained.pop(index))
        keep = max(end - part.first, 0)
        for page in part.pages[keep:]:
            self.pool.release(page)
        part.pages = part.pages[:keep]

    def _advance(self, lease: PageLease, part: WindowPart, first: int) -> None:
        """Move the floor up to page `first`; the pages before it are released unless a mark needs
        them. The marks do not change meanwhile."""
        passed = part.pages[: first - part.first]
        for index, page in enumerate(passed, part.first):
            if self._is_needed(lease, index):
                part.retained[index] = page
            else:
                self.pool.release(page)
        part.pages = part.pages[len(passed) :]
        part.first = first

"""PagePool: the free list of a fixed number of pages."""

from collections.abc import Iterable


class PagePool:
    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free_count(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        return self._free.pop()

    def allocate_many(self, count: int) -> list[int]:
        """Return the pages that as many calls of `allocate` would return."""
        rest = len(self._free) - count
        pages = self._free[rest:]
        del self._free[rest:]
        pages.reverse()
        return pages

    def release(self, pages: Iterable[int]) -> None:
        self._free.extend(pages)

    def free_pages(self) -> list[int]:
        """List the free pages, for the audit."""
        return list(self._free)

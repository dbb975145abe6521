"""PagePool: fixed KV pages; hands them out, takes them back. Knows no owner but the free list."""

from collections.abc import Iterable


class PagePool:
    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give(self, pages: Iterable[int]) -> None:
        self._free.extend(pages)

    def listing(self) -> list[int]:
        """For the audit."""
        return list(self._free)

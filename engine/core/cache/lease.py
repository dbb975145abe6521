"""PageLease: the KV pages of one sequence. A session keeps its lease from one turn to the next.

    position   0 ............ len(path)·P ............ committed ... committed+reserved
    pages      | tree's: shared, read-only | private: writable                         |
    KV         | written                                        | in flight            |

P is the page size; `path` lists the radix tree nodes of the shared pages. Between steps the tail
rule applies: len(pages) == ceil((committed + reserved) / P). After a rewind the last page of the
path may be only partly used; it is copied before the next write (see `reserve` of
SessionAwareCache). An idle lease may have spilled its tail to the host (host_tier.py); the host
pages are recalled or discarded before the lease is written. Only the cache changes a lease.

All this is about the full group. If the model has other components (component.py), the lease has a
part of each, and `committed` is the newest position at which all of them hold what the next token
needs.
"""

from array import array

from continuo.engine.core.cache.radix_tree import RadixNode

NO_ANSWER = range(0)


class PageLease:
    __slots__ = (
        "anchor",
        "answer",
        "branch",
        "committed",
        "host_end",
        "host_marks",
        "host_pages",
        "host_units",
        "mark_spacing",
        "marks",
        "pages",
        "parts",
        "path",
        "reserved",
        "scope",
    )

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.path: list[RadixNode] = []
        self.pages: array[int] = array("i")
        """Page numbers, by position. The array is replaced, not mutated, when it changes, because a
        step in flight holds the previous one."""
        self.committed = 0
        self.reserved = 0
        self.host_pages: array[int] = array("i")
        self.host_end = 0
        """Tokens up to the end of `host_pages`; meaningful only while these are not empty."""
        self.parts: list[object] = []
        """The part of the lease in each component besides the full group."""
        self.host_units: list[dict[int, int]] = []
        """Host pages or slots of each component, by place, while the lease is spilled."""
        self.host_marks: list[int] = []
        """Marks up to `host_end` at which the lease is continuable by what the host holds."""
        self.marks: list[int] = []
        """Positions up to `committed`, ascending, at which the lease is continuable (marks.py)."""
        self.answer = NO_ANSWER
        """Positions of the newest answer at which a window keeps the lease continuable, as far as
        they are committed; empty if it keeps none but the marks."""
        self.anchor = 0
        self.mark_spacing = 0
        self.branch = 0
        """Position up to which the tree had the pages of the lease, but no state; 0: none such. A
        row ends there, so that the tree gets one."""

    @property
    def private_pages(self) -> int:
        return len(self.pages) - len(self.path)

    @property
    def resident_tokens(self) -> int:
        """Tokens whose KV is on the device or on the host."""
        return self.host_end if self.host_pages else self.committed

    @property
    def launched(self) -> int:
        """Tokens whose KV is written or in flight."""
        return self.committed + self.reserved

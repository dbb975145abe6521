"""Lease: one sequence's hold on pages. A session is a lease that lives long.

    position   0 ............ len(path)·P ............ committed ... committed+reserved
    pages      | tree's: shared, read-only | private: writable                         |
    KV         | written                                        | on its way           |

Between steps len(pages) == ceil((committed + reserved) / P): the tail rule. After a rewind the
last page of the path may be only partly used; it is copied before the next write (see `grow` of
SessionAwareCache). A resting lease may have spilled its tail to the host (host.py); it is recalled
or forgotten before anything is written. Only the cache changes a lease.
"""

from array import array

from continuo.engine.core.cache.radix_tree import RadixNode


class Lease:
    __slots__ = ("committed", "host_end", "host_pages", "pages", "path", "reserved", "scope")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.path: list[RadixNode] = []
        self.pages: array[int] = array("i")
        """Another array once it changes: a step in flight has the one it was given."""
        self.committed = 0
        self.reserved = 0
        self.host_pages: array[int] = array("i")
        self.host_end = 0
        """Tokens known with the spilled ones, while `host` is not empty."""

    @property
    def private_pages(self) -> int:
        return len(self.pages) - len(self.path)

    @property
    def resident_tokens(self) -> int:
        """Tokens whose KV exists somewhere."""
        return self.host_end if self.host_pages else self.committed

    @property
    def launched(self) -> int:
        """Tokens whose KV is written or on its way."""
        return self.committed + self.reserved

"""Component: what the layers of one kind, other than full attention, hold of each lease.

    component    a token at position p needs                       unit
    window(w)    keys and values of [max(0, p - w + 1), p)         page    window_pages.py
    state        the recurrence after exactly p tokens             slot    state_pool.py

A tree node may hold a unit of each component; a match ends at the deepest node at which every
component is whole. See components.py for how they act together.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.page_pool import PagePool
from continuo.engine.core.cache.radix_tree import RadixNode
from continuo.engine.core.cache.shared_pool import SharedPool


class Component(Protocol):
    index: int
    """Index of this component in `PageLease.parts` and `RadixNode.units`."""
    group: int
    """Group of the component in page moves."""
    pool: SharedPool
    host_pool: PagePool

    def open(self, lease: PageLease) -> None:
        """Give a new lease an empty part."""
        ...

    def units_needed(self, lease: PageLease, count: int, *, copy: bool) -> int:
        """Return the units to allocate for a row of `count` more tokens. `copy`: the last page of
        the lease is shared and would be written."""
        ...

    def units_of_a_row(self, tokens: int) -> int:
        """Return the units that a lease of `tokens` tokens needs to compute one more."""
        ...

    def units_of(self, lease: PageLease) -> int:
        """Return the units that a lease holds for its committed and launched tokens."""
        ...

    def reserve(self, lease: PageLease, count: int, *, copy: bool) -> None:
        """Allocate what `units_needed` has counted."""
        ...

    def commit(self, lease: PageLease, start: int, *, is_kept: bool) -> None:
        """Follow the commit of the oldest row in flight, which began at `start`; `committed` and
        the marks are those after it. `is_kept`: all tokens of the row are kept."""
        ...

    def holds(self, lease: PageLease, position: int) -> bool:
        """Return whether the lease is continuable at `position`, up to `committed`, as far as this
        component is concerned."""
        ...

    def rewind(self, lease: PageLease, to: int) -> None:
        """Make `to`, which the lease holds, its newest position. Nothing may be in flight."""
        ...

    def settle(self, lease: PageLease) -> None:
        """Release what neither the newest position nor a mark needs."""
        ...

    def release(self, lease: PageLease) -> None:
        """Release everything that the lease holds."""
        ...

    def publish(self, lease: PageLease, path: Sequence[RadixNode], first: int) -> list[RadixNode]:
        """Share units of the lease with the nodes of `path`, of which those from `first` on were
        just added to the lease's path. Returns the nodes that hold a new unit."""
        ...

    def whole_depth(self, path: Sequence[RadixNode], depth: int) -> int:
        """Return the largest d <= depth such that the nodes of path[:d] hold what a token at the
        end of the d-th page needs."""
        ...

    def adopt(self, lease: PageLease, path: Sequence[RadixNode]) -> None:
        """Make an empty lease share the units of `path`, at whose end the component is whole."""
        ...

    def fork(self, lease: PageLease, child: PageLease, at: int, *, copy: bool) -> None:
        """Make an empty child hold what a token at `at` needs; the lease holds that too. `copy`:
        the last page is allocated anew and copied."""
        ...

    def places(self, position: int) -> Sequence[int]:
        """List the places of the units that a token at `position` needs, ascending: page indices,
        or the position itself. A unit after them is of use at later positions alone."""
        ...

    def unit_at(self, lease: PageLease, place: int) -> int:
        """Return the unit that a lease holds at a place."""
        ...

    def restore(self, lease: PageLease, units: Mapping[int, int]) -> None:
        """Give an empty lease, whose `committed` and marks are set, newly allocated units, by
        place: those that it needs at these positions."""
        ...

    def audit(self, leases: Iterable[PageLease], nodes: Iterable[RadixNode]) -> None:
        """Check that each unit is free or has as many holders as counted, and that each lease holds
        exactly what its tokens and marks need. Raises AssertionError."""
        ...


def places_of(component: Component, positions: Sequence[int]) -> dict[int, None]:
    """Return the places of the units that a lease needs at `positions`, as an ordered set."""
    return {place: None for position in positions for place in component.places(position)}

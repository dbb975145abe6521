"""Components: the windows and the recurrent state of a model together, and the marks of leases.

    model                     components
    full attention alone      none: the cache does without this file
    full and windows          a WindowPages for each window
    hybrid                    … and a StatePool

A lease is continuable at a position if all components hold what the next token needs there. It
always is at `committed` and at its marks (marks.py); a rewind or a fork goes to the newest such
position.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from continuo.engine.batch import NO_STATE, StateSlots, WindowGroup, WindowTable
from continuo.engine.core.cache.component import Component
from continuo.engine.core.cache.lease import NO_ANSWER, PageLease
from continuo.engine.core.cache.marks import (
    BRANCH_PAGES_MIN,
    add_mark,
    answer_tokens_max,
    first_spacing,
)
from continuo.engine.core.cache.page_moves import PageMoves
from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree
from continuo.engine.core.cache.state_pool import StatePool
from continuo.engine.core.cache.window_pages import WindowPages

OPEN_END = sys.maxsize
"""End of the answer of a running turn."""


class Components:
    """The components of a model, as one for the cache.

    Owns the window groups, the state pool and the set of leases with marks. Called by
    SessionAwareCache; also by Scheduler and EngineLoop for the rows of a step, and by Sessions when
    a turn begins. Always: `committed` and each mark of a lease are positions that every component
    holds; empty, so that nothing is asked, for a model of full attention alone.
    """

    def __init__(
        self,
        page_size: int,
        windows: Sequence[WindowGroup],
        state_slots: int,
        host_state_slots: int,
        moves: PageMoves,
    ) -> None:
        """Args:
        page_size: tokens of a page, the same in all groups.
        windows: sizes of the pools of the window groups, in the order of `Geometry.windows`; empty
            for a model without windows.
        state_slots: slots of recurrent states on the device; 0: the model has no recurrent layers.
        host_state_slots: slots of recurrent states in the host tier; 0: none is spilled.
        moves: the moves of the next batch; the components append to it.
        """
        self._page_size = page_size
        self.windows = [
            WindowPages(index, x.window, page_size, x.pages, x.host_pages, moves)
            for index, x in enumerate(windows)
        ]
        self.states = (
            StatePool(len(windows), page_size, state_slots, host_state_slots, moves)
            if state_slots
            else None
        )
        self._all: list[Component] = [*self.windows]
        if self.states is not None:
            self._all.append(self.states)
        self._answer_tokens_max = 0
        """Tokens up to which an answer is kept whole; 0 with a recurrent state, which is known at
        marks alone."""
        if windows and self.states is None:
            self._answer_tokens_max = answer_tokens_max(min(x.window for x in windows))
        self.marked: dict[PageLease, None] = {}
        """Leases with marks, or with an answer that is kept whole."""

    def __iter__(self) -> Iterator[Component]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    # ---- where a lease can be continued ---------------------------------------------------

    def holds(self, lease: PageLease, position: int) -> bool:
        return all(component.holds(lease, position) for component in self._all)

    def newest_held(self, lease: PageLease, limit: int) -> int:
        """Return the newest position up to `limit` at which the lease itself is continuable."""
        candidates = (limit, *(mark for mark in reversed(lease.marks) if mark < limit))
        return next((x for x in candidates if self.holds(lease, x)), 0)

    def whole_depth(self, path: Sequence[RadixNode], depth: int) -> int:
        """Return the largest d <= depth such that a lease can continue from path[:d]."""
        whole = -1
        while whole != depth:
            whole = depth
            for component in self._all:
                depth = component.whole_depth(path, depth)
        return depth

    def note_branch(self, lease: PageLease, pages: int, depth: int) -> None:
        """Record that the tree has the first `pages` pages of a lease, but states only for the
        first `depth` of them: where the ids of the lease leave those in the tree, it will give the
        tree a state (marks.py)."""
        if self.states is None:
            return
        known = max(depth, lease.committed // self._page_size)
        if pages - known >= BRANCH_PAGES_MIN:
            lease.branch = pages * self._page_size

    def have_room_for(self, tokens: int, busy: Collection[PageLease]) -> bool:
        """Return whether a lease of `tokens` tokens could compute one more, if all leases but the
        `busy` ones were evicted."""
        return all(
            component.units_of_a_row(tokens)
            <= component.pool.total - sum(component.units_of(lease) for lease in busy)
            for component in self._all
        )

    # ---- rows -----------------------------------------------------------------------------

    def row_memory(self, lease: PageLease) -> tuple[tuple[WindowTable, ...], StateSlots]:
        """Return the window tables and state slots of the row that was reserved last."""
        windows = tuple(component.table(lease) for component in self.windows)
        return windows, self.states.last_row(lease) if self.states else NO_STATE

    def fit_row(self, lease: PageLease, count: int) -> int:
        """Return how many of the next `count` tokens the lease's next row should compute: at least
        one. A row has no more window pages than there are. The rows of a recurrent state end at
        page boundaries where they can, so that the state there can be kept; one of them at the
        anchor, and one at the branch."""
        if count <= 1:
            return count
        start = lease.launched
        for component in self.windows:
            count = max(min(count, component.room_of_a_row(lease) - start), 1)
        if self.states is None:
            return count
        end = start + count
        stops = [stop for stop in (lease.branch, lease.anchor) if start < stop < end]
        if stops:
            return min(stops) - start
        boundary = end // self._page_size * self._page_size
        return boundary - start if boundary > start else count

    def commit(self, lease: PageLease, start: int, *, is_kept: bool) -> None:
        """Follow the commit of the oldest row in flight, which began at `start`, and keep a mark
        there if it is a page boundary."""
        mark = start
        if self.states is None and start <= lease.anchor <= lease.committed:
            mark = lease.anchor
        before = lease.marks
        if is_kept and self._is_new_mark(lease, mark):
            if not before:
                lease.anchor = mark
            spacing = lease.mark_spacing or first_spacing(self._page_size)
            lease.marks, lease.mark_spacing = add_mark(before, lease.anchor, spacing, mark)
            self.marked[lease] = None
        answer = lease.answer
        if min(lease.committed, answer.stop) - answer.start > self._answer_tokens_max:
            self._drop_answer(lease)
        for component in self._all:
            component.commit(lease, start, is_kept=is_kept)
            if lease.marks is not before and len(lease.marks) <= len(before):
                component.settle(lease)

    def rewind(self, lease: PageLease, to: int) -> int:
        """Rewind the parts of a lease to the newest position up to `to` at which it is continuable,
        by what it holds or by what the tree holds of its path. Returns that position."""
        held = self.newest_held(lease, to)
        depth = self.whole_depth(lease.path, min(len(lease.path), to // self._page_size))
        shared = depth * self._page_size
        if held < shared:
            self.adopt(lease, lease.path[:depth])
            return shared
        for component in self._all:
            component.rewind(lease, held)
        self.set_marks(lease, [mark for mark in lease.marks if mark <= held])
        return held

    def adopt(self, lease: PageLease, path: Sequence[RadixNode]) -> None:
        """Replace the parts of a lease, and its marks, by the parts of `path`, at whose end all
        components are whole."""
        self.release(lease)
        for component in self._all:
            component.adopt(lease, path)

    def release(self, lease: PageLease) -> None:
        for component in self._all:
            component.release(lease)
        self.set_marks(lease, [])

    # ---- marks ----------------------------------------------------------------------------

    def begin_turn(self, lease: PageLease, prompt: int, *, keeps_answer: bool = True) -> None:
        """Keep the lease continuable at the last page boundary before the end of its prompt, and at
        a few positions of the answer that follows; at all of them, if the model has windows only
        and `keeps_answer`. Marks before that are dropped. (Without components it is continuable
        everywhere.)"""
        if not self._all:
            return
        anchor = self.last_boundary(prompt)
        if anchor != lease.anchor or not lease.mark_spacing:
            lease.anchor, lease.mark_spacing = anchor, first_spacing(self._page_size)
        lease.marks = [mark for mark in lease.marks if mark >= anchor]
        is_kept = keeps_answer and self._answer_tokens_max > 0
        lease.answer = range(anchor, OPEN_END) if is_kept else NO_ANSWER
        self._settle(lease)

    def end_turn(self, lease: PageLease) -> None:
        """Follow the end of a turn: what is committed next is no part of its answer."""
        if lease.answer:
            lease.answer = range(lease.answer.start, OPEN_END - 1)
            self.cut_answer(lease, lease.committed)

    def cut_answer(self, lease: PageLease, to: int) -> None:
        """Keep no position after `to` of an answer, unless its turn is running."""
        answer = lease.answer
        if answer and answer.stop < OPEN_END:
            lease.answer = range(answer.start, max(min(answer.stop, to), answer.start))
            if not lease.answer:
                self._settle(lease)

    def close(self, lease: PageLease) -> None:
        """Keep nothing of a lease that is about to be closed."""
        self._drop_answer(lease)

    def _drop_answer(self, lease: PageLease) -> None:
        """Keep of the newest answer no more than its marks."""
        if lease.answer:
            lease.answer = NO_ANSWER
            self._settle(lease)

    def last_boundary(self, length: int) -> int:
        """Return the last page boundary before the last of `length` tokens."""
        return max(length - 1, 0) // self._page_size * self._page_size

    def set_marks(self, lease: PageLease, marks: list[int]) -> None:
        """Reduce the marks of a lease to `marks`."""
        if len(marks) != len(lease.marks):
            lease.marks = marks
            self._settle(lease)

    def _settle(self, lease: PageLease) -> None:
        if lease.marks or lease.answer:
            self.marked[lease] = None
        else:
            self.marked.pop(lease, None)
        for component in self._all:
            component.settle(lease)

    def has_inside(self, lease: PageLease) -> bool:
        """Return whether the lease is kept continuable inside an answer, not only at its start."""
        return len(lease.marks) > 1 or bool(lease.answer)

    def drop_inside(self, lease: PageLease) -> None:
        """Keep a lease continuable at fewer positions inside its answer: at its marks, and at none
        if it was at no others."""
        if lease.answer:
            self._drop_answer(lease)
        else:
            self.set_marks(lease, lease.marks[:1])

    def drop_marks(self) -> bool:
        """Drop what one lease keeps inside an answer, or, if none keeps such positions, its mark.
        Returns False if no lease has a mark."""
        inside = next(filter(self.has_inside, self.marked), None)
        if inside is not None:
            self.drop_inside(inside)
        elif self.marked:
            self.set_marks(next(iter(self.marked)), [])
        else:
            return False
        return True

    def restore_marks(self, lease: PageLease, marks: list[int]) -> None:
        """Give a lease without parts the marks at which it is about to be restored."""
        lease.marks = marks
        if marks:
            self.marked[lease] = None

    def _is_new_mark(self, lease: PageLease, position: int) -> bool:
        is_boundary = position > 0 and position % self._page_size == 0
        newest = lease.marks[-1] if lease.marks else -1
        return is_boundary and position >= lease.anchor and position > newest

    # ---- accounting -----------------------------------------------------------------------

    def audit(
        self, leases: Iterable[PageLease], nodes: Collection[RadixNode], tree: RadixTree
    ) -> None:
        """Check each component, and that every lease is continuable at `committed` and at its
        marks. Raises AssertionError."""
        if not self._all:
            return
        leases = list(leases)
        for lease in leases:
            assert bool(lease.host_units) == bool(lease.host_pages)
            assert not lease.host_marks or lease.host_marks[-1] <= lease.host_end
            assert lease.host_units or not lease.host_marks
            assert all(self.holds(lease, x) for x in (*lease.marks, lease.committed)), (
                "a lease is not continuable"
            )
            assert all(x <= lease.committed and x % self._page_size == 0 for x in lease.marks)
        assert self.marked.keys() == {x for x in leases if x.marks or x.answer}
        for component in self._all:
            component.audit(leases, nodes)
            in_tree = sum(node.units[component.index] >= 0 for node in nodes)
            assert tree.unit_counts[component.index] == in_tree
            slots = component.host_pool.free_pages()
            for lease in leases:
                if lease.host_units:
                    units = lease.host_units[component.index]
                    slots.extend(units.values())
                    assert all(
                        place in units
                        for position in (lease.host_end, *lease.host_marks)
                        for place in component.places(position)
                    ), "a spilled lease is not continuable"
            assert sorted(slots) == list(range(component.host_pool.total)), "a host unit is lost"

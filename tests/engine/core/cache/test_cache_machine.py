"""Stateful test of the cache: random operations on many leases, against a list of ids per lease.

`memory` stands for the device: in place of keys and values it holds the digest of the whole past of
a token, and it carries out the page moves that the cache orders. If each lease can always read back
its own past, no page was shared, freed, copied, evicted or overwritten wrongly.
"""

import os
import random
import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from continuo.engine.batch import NO_STATE, STATE_POOL, Geometry, WindowGroup
from continuo.engine.core.cache import PageLease, SessionAwareCache
from continuo.engine.core.cache.window_pages import WindowPages
from tests.support.digest_runner import apply_moves
from tests.support.worlds import crowded_world

pytestmark = pytest.mark.slow

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=7)
LENGTH_MAX = 1_000_000
"""Ids of a lease in a world that is not crowded: as many as a history can make."""


def memory_of(units: int, size: int) -> list[list[object]]:
    return [[None] * size for _ in range(units)]


class LeaseModel:
    """The expected ids of one lease, and whether the lease is idle."""

    def __init__(self, lease: PageLease, ids: Sequence[int] = ()) -> None:
        self.lease = lease
        self.ids = list(ids)
        self.is_idle = False
        self._digested: list[int] | None = None
        self._pasts: list[int] = []

    def pasts(self) -> list[int]:
        """Return, by position, the digest of all ids before it."""
        if self._digested != self.ids:
            self._digested = list(self.ids)
            scope = zlib.crc32(self.lease.scope.encode())
            digests = accumulate(self.ids, lambda past, id: hash((past, id)), initial=scope)
            self._pasts = list(digests)
        return self._pasts

    @property
    def ids_array(self) -> "array[int]":
        return array("i", self.ids)


class CacheMachine(RuleBasedStateMachine):
    leases = Bundle("leases")
    length_max = LENGTH_MAX
    """Ids that a lease may have."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        pages=st.integers(4, 12),
        host=st.integers(0, 8),
        windows=st.sampled_from([(), (), (2,), (5,), (3, 7)]),
        slots=st.sampled_from([0, 0, 4, 9]),
        scarce=st.booleans(),
    )
    def start(
        self,
        page_size: int,
        pages: int,
        host: int,
        windows: tuple[int, ...],
        slots: int,
        scarce: bool,
    ) -> None:
        window_pages = 6 if scarce else 2 * pages
        groups = tuple(WindowGroup(window, window_pages, host) for window in windows)
        host_slots = min(host, slots)
        memory = {"windows": groups, "state_slots": slots, "host_state_slots": host_slots}
        self._start(pages, page_size, host, memory)

    def _start(self, pages: int, page_size: int, host_pages: int, memory: dict[str, Any]) -> None:
        geometry = Geometry(pages, page_size, LENGTH_MAX, 3, 1, 0, host_pages, **memory)
        self.cache = SessionAwareCache.for_geometry(geometry, blanks_pages=True)
        self.memory, self.host = memory_of(pages, page_size), memory_of(host_pages, page_size)
        self.windows = [memory_of(each.pages, page_size) for each in geometry.windows]
        self.host_windows = [memory_of(each.host_pages, page_size) for each in geometry.windows]
        self.states = memory_of(geometry.state_slots, 1)
        self.host_states = memory_of(geometry.host_state_slots, 1)
        self.all: list[LeaseModel] = []

    @property
    def scale(self) -> int:
        """The factor of lengths, by which leases have several pages whatever the size of these."""
        return max(self.cache.page_size // 4, 1)

    def _scale(self, ids: list[int]) -> list[int]:
        return (ids * self.scale)[: self.length_max]

    def _append(self, model: LeaseModel, ids: list[int]) -> None:
        model.ids += ids[: max(self.length_max - len(model.ids), 0)]

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Cut positions at page boundaries. Yields the index of a page, and slices of that page and
        of the pasts."""
        size = self.cache.page_size
        for index in range(start // size, -(-end // size)):
            first, last = max(start, index * size), min(end, (index + 1) * size)
            yield (
                index,
                slice(first - index * size, last - index * size),
                slice(first + 1, last + 1),
            )

    def _device(self) -> None:
        moves = self.cache.take_moves()
        apply_moves(moves, self.memory, self.host, blank=None)
        for n, (device, host) in enumerate(zip(self.windows, self.host_windows, strict=True), 1):
            apply_moves(moves, device, host, n, blank=None)
        apply_moves(moves, self.states, self.host_states, STATE_POOL, blank=None)

    def _run_row(self, model: LeaseModel, start: int, end: int) -> None:
        """Compute one row: read what a model's layers read, and write what they write."""
        size, lease, pasts = self.cache.page_size, model.lease, model.pasts()
        tables, slots = self.cache.components.row_memory(lease)
        if self.cache.components.states:
            assert slots.read != slots.write
            self._check_state(model, slots.read, start)
            assert self.states[slots.write] == [None], "a state slot is not blank"
            self.states[slots.write] = [pasts[end]]
        fresh = range(-(-start // size), -(-end // size))
        """Indices of the pages that were allocated for this row."""
        assert all(self.memory[lease.pages[n]] == [None] * size for n in fresh), "not blank"
        for index, part, past in self._pieces(start, end):
            self.memory[lease.pages[index]][part] = pasts[past]
        for component, (first, pages), memory in zip(
            self.cache.components.windows, tables, self.windows, strict=True
        ):
            self._check_window(model, component, (first, pages), start)
            assert all(memory[pages[n - first]] == [None] * size for n in fresh), "not blank"
            for index, part, past in self._pieces(start, end):
                memory[pages[index - first]][part] = pasts[past]

    def _check_window(
        self,
        model: LeaseModel,
        component: WindowPages,
        table: "tuple[int, array[int]]",
        at: int,
    ) -> None:
        first, pages = table
        memory, pasts = self.windows[component.index], model.pasts()
        for index, part, past in self._pieces(max(at - component.window + 1, 0), at):
            assert index >= first, "a row reads before its window"
            assert memory[pages[index - first]][part] == pasts[past]

    def _check_state(self, model: LeaseModel, slot: int, at: int) -> None:
        if at:
            assert self.states[slot] == [model.pasts()[at]]
        else:
            assert slot == -1

    def _check_host_units(self, model: LeaseModel) -> None:
        """Check what the host holds of a lease, at its end and at its marks."""
        lease, pasts = model.lease, model.pasts()
        if not lease.host_units:
            return
        for at in (lease.host_end, *lease.host_marks):
            for component, memory in zip(
                self.cache.components.windows, self.host_windows, strict=True
            ):
                slots = lease.host_units[component.index]
                for index, part, past in self._pieces(max(at - component.window + 1, 0), at):
                    assert memory[slots[index]][part] == pasts[past]
            if self.cache.components.states:
                slot = lease.host_units[-1][at]
                assert self.host_states[slot] == [pasts[at]]

    def _mark_busy(self, model: LeaseModel) -> LeaseModel:
        self.cache.mark_busy(model.lease)
        model.is_idle = False
        return model

    @rule(target=leases, ids=TOKENS, scope=st.sampled_from(["a", "b"]))
    def open(self, ids: list[int], scope: str) -> LeaseModel:
        model = LeaseModel(self.cache.open(scope), self._scale(ids))
        self.all.append(model)
        return model

    @rule(model=leases, ids=TOKENS)
    def append(self, model: LeaseModel, ids: list[int]) -> None:
        self._append(model, self._scale(ids))

    @rule(model=leases)
    def match(self, model: LeaseModel) -> None:
        self._mark_busy(model)
        before = model.lease.committed
        after = self.cache.match(model.lease, model.ids_array, len(model.ids))
        assert after >= before
        assert after == model.lease.committed <= len(model.ids)
        assert model.lease.resident_tokens >= before

    @rule(model=leases, data=st.data())
    def compute(self, model: LeaseModel, data: st.DataObject) -> None:
        """Run one step: reserve, write, commit; some tokens may be discarded at collect."""
        owed = len(model.ids) - model.lease.committed
        if owed:
            count = data.draw(st.integers(1, owed), "count")
            ahead = data.draw(st.integers(0, owed - count), "ahead")
            self._step(model, count, ahead, data)

    @rule(model=leases, drafts=st.integers(1, 9), data=st.data())
    def speculate(self, model: LeaseModel, drafts: int, data: st.DataObject) -> None:
        """Compute the owed ids and drafts behind them, some of which become ids."""
        self._compute_all(model)
        lease = self._mark_busy(model).lease
        start, known = lease.committed, len(model.ids)
        if lease.committed != known or lease.host_pages:
            return
        self._append(model, data.draw(TOKENS, "owed"))
        count = len(model.ids) - start
        if not count:
            return
        accepted = data.draw(st.integers(0, drafts), "accepted")
        if self.cache.components.fit_row(lease, count + drafts) < count + drafts:
            return
        if not self.cache.reserve(lease, count + drafts):
            return
        self._device()
        ids, model.ids = model.ids, model.ids + [n % 3 for n in range(drafts)]
        self._run_row(model, start, start + count + drafts)
        model.ids = model.ids[: len(ids) + accepted]
        self.cache.commit(lease, count + drafts, count + accepted)
        is_refused = accepted < drafts
        if self.cache.components.states and is_refused:
            assert lease.committed == start
        else:
            assert lease.committed == start + count + accepted
        assert lease.reserved == 0

    def _compute_all(self, model: LeaseModel) -> None:
        owed = len(model.ids) - model.lease.committed
        if owed:
            self._step(model, owed)

    def _step(
        self, model: LeaseModel, count: int, ahead: int = 0, data: st.DataObject | None = None
    ) -> None:
        lease = self._mark_busy(model).lease
        known = lease.resident_tokens
        at = data.draw(st.none() | st.integers(0, known), "at") if data else None
        if self.cache.recall(lease, at):
            assert lease.committed == known, "a recall must be complete"
        if (count := min(count, len(model.ids) - lease.committed)) <= 0:
            return
        ahead = min(ahead, len(model.ids) - lease.committed - count)
        pages, committed = list(lease.pages), lease.committed
        if not self.cache.reserve(lease, count):
            assert (list(lease.pages), lease.committed, lease.reserved) == (pages, committed, 0)
            assert self.cache.components or not self.cache.tree.unreferenced, (
                "refused while a page could be evicted"
            )
            return
        self._device()
        self._run_row(model, committed, committed + count)
        more = ahead if ahead and self.cache.reserve(lease, ahead) else 0
        if more:
            self._device()
            self._run_row(model, committed + count, committed + count + more)
        kept = data.draw(st.integers(0, more), "kept") if more and data else 0
        self.cache.commit(lease, count)
        if more:
            self.cache.commit(lease, more, kept)
            kept = 0 if self.cache.components.states and kept < more else kept
        assert lease.committed == committed + count + kept

    @rule(model=leases, data=st.data())
    def publish(self, model: LeaseModel, data: st.DataObject) -> None:
        self._device()
        limit = data.draw(st.integers(0, len(model.ids)))
        self.cache.publish(model.lease, model.ids_array, limit)

    @rule(model=leases, data=st.data())
    def rewind(self, model: LeaseModel, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, len(model.ids)))
        committed, known = model.lease.committed, model.lease.resident_tokens
        marks = [mark for mark in model.lease.marks if mark <= to]
        if known <= to:
            marks.append(known)
        marks += [mark for mark in model.lease.host_marks if mark <= to]
        self.cache.rewind(model.lease, to)
        del model.ids[to:]
        if self.cache.components:
            newest = max([0, *marks])
            assert newest <= model.lease.resident_tokens <= to, "rewind lost a mark"
            return
        assert model.lease.committed == min(to, committed), "rewind lost committed tokens"
        assert model.lease.resident_tokens == min(to, known), "rewind lost spilled tokens"

    @rule(model=leases, ids=TOKENS, data=st.data())
    def edit(self, model: LeaseModel, ids: list[int], data: st.DataObject) -> None:
        """Compute and publish all ids, rewind, and continue: the most common use of a session."""
        self._compute_all(model)
        self.publish(model, data)
        self.rewind(model, data)
        self._append(model, self._scale(ids))
        self._compute_all(model)

    @rule(target=leases, model=leases, data=st.data())
    def fork(self, model: LeaseModel, data: st.DataObject) -> LeaseModel:
        self._mark_busy(model)
        at = data.draw(st.integers(0, len(model.ids)))
        shareable = data.draw(st.integers(at, len(model.ids)))
        committed, marks = model.lease.committed, [x for x in model.lease.marks if x <= at]
        lease = self.cache.fork(model.lease, model.ids_array, at, shareable)
        assert model.lease.committed == committed
        if not self.cache.components:
            assert min(at, committed) - lease.committed < self.cache.page_size
        elif model.lease.marks:
            assert lease.committed >= max(marks, default=0), "a fork lost a mark"
        child = LeaseModel(lease, model.ids[:at])
        self.all.append(child)
        return child

    @rule(model=leases)
    def begin_turn(self, model: LeaseModel) -> None:
        self.cache.components.begin_turn(model.lease, len(model.ids))

    @rule(model=leases)
    def end_turn(self, model: LeaseModel) -> None:
        self.cache.components.end_turn(model.lease)

    @rule(model=leases, count=st.integers(1, 9))
    def decode(self, model: LeaseModel, count: int) -> None:
        """Compute ids one by one, so that marks are made at page boundaries."""
        for n in range(count):
            self._append(model, [n % 3])
            while len(model.ids) > model.lease.committed:
                before = model.lease.committed
                self._step(
                    model, self.cache.components.fit_row(model.lease, len(model.ids) - before)
                )
                if model.lease.committed <= before:
                    return

    @rule(target=leases, head=st.integers(0, 12), ids=TOKENS)
    def prefill(self, head: int, ids: list[int]) -> LeaseModel:
        """Compute a first prompt, which begins like others, row by row, and publish it. A row ends
        where its ids leave those in the tree, which has a state there then."""
        model = LeaseModel(self.cache.open("a"), [n % 3 for n in range(head * self.scale)])
        self._append(model, self._scale(ids))
        self.all.append(model)
        cache, lease, length = self.cache, model.lease, len(model.ids)
        cache.match(lease, model.ids_array, cache.match_end(length), length)
        while (before := lease.committed) < length:
            self._step(model, cache.components.fit_row(lease, length - before))
            if lease.committed <= before:
                break
            cache.publish(lease, model.ids_array, length)
            assert not before < lease.branch < lease.committed, "a row passed the branch"
            if lease.committed == lease.branch:
                assert lease.path[-1].units[-1] >= 0, "the tree has no state at the branch"
        return model

    @rule(model=leases)
    def mark_idle(self, model: LeaseModel) -> None:
        self.cache.mark_idle(model.lease)
        model.is_idle = True

    @rule(model=consumes(leases), keep=st.booleans())
    def close(self, model: LeaseModel, keep: bool) -> None:
        self.cache.close(model.lease, model.ids_array, len(model.ids) if keep else 0)
        self.all.remove(model)

    @rule()
    def busy_leases_are_never_evicted(self) -> None:
        """A greedy lease takes all available pages, and releases them."""
        kept = [(x, list(x.lease.pages)) for x in self.all if not x.is_idle]
        greedy = self.cache.open("greedy")
        count = self.cache.usage.available_pages() * self.cache.page_size
        while count and not self.cache.reserve(greedy, count):
            count -= self.cache.page_size
        self._device()
        for page in greedy.pages:
            self.memory[page] = ["greedy"] * self.cache.page_size
        tables, slots = self.cache.components.row_memory(greedy) if count else ((), NO_STATE)
        for (_, pages), memory in zip(tables, self.windows, strict=False):
            for page in pages:
                memory[page] = ["greedy"] * self.cache.page_size
        if slots.write >= 0:
            self.states[slots.write] = ["greedy"]
        assert all(list(model.lease.pages) == pages for model, pages in kept)
        self.cache.commit(greedy, count, 0)
        self.cache.close(greedy, array("i"), 0)

    @invariant()
    def each_lease_reads_its_own_past(self) -> None:
        if not hasattr(self, "cache"):
            return
        self._device()
        for model in self.all:
            pasts = model.pasts()
            for index, part, past in self._pieces(0, model.lease.committed):
                assert self.memory[model.lease.pages[index]][part] == pasts[past]
            if model.lease.committed and not model.lease.reserved:
                for component in self.cache.components.windows:
                    table = component.table(model.lease)
                    self._check_window(model, component, table, model.lease.committed)
                if states := self.cache.components.states:
                    for mark in (*model.lease.marks, model.lease.committed):
                        self._check_state(model, states.unit_at(model.lease, mark), mark)
            self._check_host_units(model)
            held = len(model.lease.pages)
            for index, part, past in self._pieces(
                held * self.cache.page_size, model.lease.resident_tokens
            ):
                slot = model.lease.host_pages[index - held]
                assert self.host[slot][part] == pasts[past]

    @invariant()
    def audit_holds(self) -> None:
        if hasattr(self, "cache"):
            self.cache.audit()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for model in self.all:
            self.cache.close(model.lease, model.ids_array, 0)
        self.cache.audit()
        assert self.cache.usage.leased_pages == 0
        assert self.cache.tree.unreferenced == self.cache.tree.size
        while self.cache.tree.evict() is not None:
            pass
        assert self.cache.tree.size == 0
        for component in self.cache.components:
            assert component.pool.free_count == component.pool.total


class CrowdedCacheMachine(CacheMachine):
    """Six leases of two to four scopes in a crowded world (tests/support/worlds.py)."""

    @initialize(
        target=CacheMachine.leases,
        source=st.randoms(use_true_random=False),
        page_size=st.sampled_from([16, 256]),
    )
    def start(self, source: random.Random, page_size: int) -> MultipleResults[LeaseModel]:
        world = crowded_world(source, page_size=page_size)
        self.length_max = world.session_tokens
        self._start(world.pages, page_size, world.host_pages, world.memory)
        for n in range(world.sessions):
            scope, _ = world.group(n)
            self.all.append(LeaseModel(self.cache.open(scope)))
        return multiple(*self.all)

    @rule(model=CacheMachine.leases, ids=TOKENS, data=st.data())
    def run_turn(self, model: LeaseModel, ids: list[int], data: st.DataObject) -> None:
        """Continue a lease, which is then idle; if it is full, from a position in its log."""
        if len(model.ids) == self.length_max:
            self.rewind(model, data)
        self.append(model, ids)
        self._compute_all(model)
        self.publish(model, data)
        self.mark_idle(model)


TestCache = CacheMachine.TestCase
TestCrowdedCache = CrowdedCacheMachine.TestCase
TestCache.settings = TestCrowdedCache.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "200")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)

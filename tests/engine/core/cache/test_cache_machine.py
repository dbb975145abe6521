"""Random lives of many leases against the plainest model: a list of ids per lease.

`memory` stands for the device: where it would write keys and values we write a digest of the whole
past, and it carries out the page copies the cache orders. If each lease can always read its own
past back, no page was shared, freed, copied, evicted or overwritten wrongly.
"""

import os
from array import array
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from continuo.engine.core.cache import Lease, SessionAwareCache
from tests.support.digest_runner import carry_out

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=7)


class Life:
    """One lease, the ids its owner knows, and how many of them the owner may publish."""

    def __init__(self, lease: Lease, ids: Sequence[int] = ()) -> None:
        self.lease = lease
        self.ids = list(ids)
        self.resting = False

    @property
    def known(self) -> "array[int]":
        return array("i", self.ids)


class Lives(RuleBasedStateMachine):
    lives = Bundle("lives")

    @initialize(
        page_size=st.sampled_from([1, 2, 4]), pages=st.integers(4, 12), host=st.integers(0, 8)
    )
    def start(self, page_size: int, pages: int, host: int) -> None:
        self.cache = SessionAwareCache(pages, page_size, host)
        self.host: list[list[object]] = [[None] * page_size for _ in range(host)]
        self.memory: list[list[object]] = [[None] * page_size for _ in range(pages)]
        self.all: list[Life] = []

    def _device(self) -> None:
        carry_out(self.cache.take_moves(), self.memory, self.host)

    def _awake(self, life: Life) -> Life:
        self.cache.mark_busy(life.lease)
        life.resting = False
        return life

    @rule(target=lives, ids=TOKENS, scope=st.sampled_from(["a", "b"]))
    def open(self, ids: list[int], scope: str) -> Life:
        life = Life(self.cache.open(scope), ids)
        self.all.append(life)
        return life

    @rule(life=lives, ids=TOKENS)
    def append(self, life: Life, ids: list[int]) -> None:
        life.ids += ids

    @rule(life=lives)
    def match(self, life: Life) -> None:
        self._awake(life)
        before = life.lease.committed
        after = self.cache.match(life.lease, life.known, len(life.ids))
        assert after >= before
        assert after == life.lease.committed <= len(life.ids)
        assert life.lease.resident_tokens >= before

    @rule(life=lives, data=st.data())
    def compute(self, life: Life, data: st.DataObject) -> None:
        """One step: reserve, write, commit; some of it may be dropped at collect."""
        owed = len(life.ids) - life.lease.committed
        if owed:
            count = data.draw(st.integers(1, owed), "count")
            ahead = data.draw(st.integers(0, owed - count), "ahead")
            self._step(life, count, ahead, data)

    def _compute_all(self, life: Life) -> None:
        owed = len(life.ids) - life.lease.committed
        if owed:
            self._step(life, owed)

    def _step(
        self, life: Life, count: int, ahead: int = 0, data: st.DataObject | None = None
    ) -> None:
        lease = self._awake(life).lease
        known = lease.resident_tokens
        if self.cache.recall(lease):
            assert lease.committed == known, "recalled, but not all of it"
        if (count := min(count, len(life.ids) - lease.committed)) <= 0:
            return
        ahead = min(ahead, len(life.ids) - lease.committed - count)
        pages, committed = list(lease.pages), lease.committed
        if not self.cache.reserve(lease, count):
            assert (list(lease.pages), lease.committed, lease.reserved) == (pages, committed, 0)
            assert not self.cache.tree.unreferenced, "refused while there was something to evict"
            return
        more = ahead if ahead and self.cache.reserve(lease, ahead) else 0
        self._device()
        for position in range(committed, committed + count + more):
            page = lease.pages[position // self.cache.page_size]
            past = (lease.scope, tuple(life.ids[: position + 1]))
            self.memory[page][position % self.cache.page_size] = past
        kept = data.draw(st.integers(0, more), "kept") if more and data else 0
        self.cache.commit(lease, count)
        if more:
            self.cache.commit(lease, more, kept)
        assert lease.committed == committed + count + kept

    @rule(life=lives, data=st.data())
    def publish(self, life: Life, data: st.DataObject) -> None:
        self._device()
        limit = data.draw(st.integers(0, len(life.ids)))
        self.cache.publish(life.lease, life.known, limit)

    @rule(life=lives, data=st.data())
    def rewind(self, life: Life, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, len(life.ids)))
        committed, known = life.lease.committed, life.lease.resident_tokens
        self.cache.rewind(life.lease, to)
        del life.ids[to:]
        assert life.lease.committed == min(to, committed), "rewind computed something again"
        assert life.lease.resident_tokens == min(to, known), "rewind forgot what was spilled"

    @rule(life=lives, ids=TOKENS, data=st.data())
    def edit(self, life: Life, ids: list[int], data: st.DataObject) -> None:
        """What sessions do most: all computed and shared, cut somewhere, gone on from there."""
        self._compute_all(life)
        self.publish(life, data)
        self.rewind(life, data)
        life.ids += ids
        self._compute_all(life)

    @rule(target=lives, life=lives, data=st.data())
    def fork(self, life: Life, data: st.DataObject) -> Life:
        self._awake(life)
        at = data.draw(st.integers(0, len(life.ids)))
        shareable = data.draw(st.integers(at, len(life.ids)))
        committed = life.lease.committed
        lease = self.cache.fork(life.lease, life.known, at, shareable)
        assert life.lease.committed == committed
        assert min(at, committed) - lease.committed < self.cache.page_size
        child = Life(lease, life.ids[:at])
        self.all.append(child)
        return child

    @rule(life=lives)
    def rest(self, life: Life) -> None:
        self.cache.mark_idle(life.lease)
        life.resting = True

    @rule(life=lives)
    def retract(self, life: Life) -> None:
        self.cache.retract(life.lease)
        assert not life.lease.pages

    @rule(life=consumes(lives), keep=st.booleans())
    def close(self, life: Life, keep: bool) -> None:
        self.cache.close(life.lease, life.known, len(life.ids) if keep else 0)
        self.all.remove(life)

    @rule()
    def awake_leases_are_left_alone(self) -> None:
        """A greedy newcomer takes all that can be had, and gives it back."""
        kept = [(x, list(x.lease.pages)) for x in self.all if not x.resting]
        greedy = self.cache.open("greedy")
        count = self.cache.available_pages() * self.cache.page_size
        while count and not self.cache.reserve(greedy, count):
            count -= self.cache.page_size
        self._device()
        for page in greedy.pages:
            self.memory[page] = ["greedy"] * self.cache.page_size
        assert all(list(life.lease.pages) == pages for life, pages in kept)
        self.cache.commit(greedy, count, 0)
        self.cache.close(greedy, array("i"), 0)

    @invariant()
    def everyone_reads_their_own_past(self) -> None:
        if not hasattr(self, "cache"):
            return
        self._device()
        for life in self.all:
            for position in range(life.lease.committed):
                page = life.lease.pages[position // self.cache.page_size]
                past = (life.lease.scope, tuple(life.ids[: position + 1]))
                assert self.memory[page][position % self.cache.page_size] == past
            for index, slot in enumerate(life.lease.host_pages, len(life.lease.pages)):
                start = index * self.cache.page_size
                for position in range(
                    start, min(start + self.cache.page_size, life.lease.resident_tokens)
                ):
                    past = (life.lease.scope, tuple(life.ids[: position + 1]))
                    assert self.host[slot][position - start] == past

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "cache"):
            self.cache.audit()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for life in self.all:
            self.cache.close(life.lease, life.known, 0)
        self.cache.audit()
        assert self.cache.leased_pages == 0
        assert self.cache.tree.unreferenced == self.cache.tree.size
        while self.cache.tree.evict() is not None:
            pass
        assert self.cache.tree.size == 0


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "200")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)

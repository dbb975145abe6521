"""Tests of the scheduler: which rows and tokens a step gets, on the real cache, without a loop."""

from array import array

import pytest

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule import Scheduler, StepPlan
from continuo.engine.core.schedule.packing import SHORT_TURN_TOKENS_MAX
from continuo.engine.core.schedule.step import StepLoad
from continuo.engine.core.schedule.step_time import (
    CHUNK_TOKENS_MIN,
    CHUNK_TOKENS_MIN_ALONE,
    DISCARDED_S_MAX,
    DISCARDED_SHARE,
)
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import Sampling
from continuo.engine.wire.token_log import TokenLog


class SchedulerHarness:
    """A scheduler, its cache, and the steps of a loop by hand."""

    def __init__(
        self,
        *,
        pages: int = 100,
        tokens: int = 512,
        rows: int = 8,
        host_pages: int = 0,
        max_group_share: float = 1.0,
        samples_late: bool = False,
    ) -> None:
        self.cache = SessionAwareCache(pages, 4, host_pages)
        self.scheduler = Scheduler(
            self.cache, tokens, rows, max_group_share, samples_late=samples_late
        )

    def sequence(self, length: int, name: str = "s", first: int = 0) -> Sequence:
        log = TokenLog(10_000, streaming=True)
        log.ids.extend((first + n) % 90 for n in range(length))
        return Sequence(name, self.cache.open(), log, None, 0.0)

    def idle_sequence(self, length: int, name: str = "idle", first: int = 0) -> Sequence:
        """Return an idle sequence whose ids are all committed."""
        sequence = self.sequence(length, name, first)
        assert self.cache.reserve(sequence.lease, length)
        self.cache.commit(sequence.lease, length)
        sequence.committed_high_water = length
        sequence.turn_count = 2
        self.cache.mark_idle(sequence.lease)
        return sequence

    def begin_turn(
        self, sequence: Sequence, limit: int = 100, sampling: Sampling | None = None
    ) -> Sequence:
        turn = Turn("turn", sampling or Sampling(), 0, limit, None, None, 0.0)
        turn.begin(sequence.log)
        sequence.turn = turn
        sequence.turn_count += 1
        self.scheduler.add_turn(sequence)
        return sequence

    def waiting_turn(
        self, length: int, name: str = "s", first: int = 0, limit: int = 100
    ) -> Sequence:
        return self.begin_turn(self.sequence(length, name, first), limit)

    def plan(self) -> list[tuple[Sequence, int, bool]]:
        """Plan a step and leave it in flight. Returns (sequence, tokens, draws) for each row."""
        self.last_plan: StepPlan = self.scheduler.plan()
        self.cache.audit()
        for work in self.last_plan.rows:
            if work.turn is not None:
                work.turn.launched_tokens += 1
                work.sequence.promised += 1
        return [(row.sequence, row.tokens, row.turn is not None) for row in self.last_plan.rows]

    def collect(self) -> None:
        for row in self.last_plan.rows:
            sequence, turn = row.sequence, row.turn
            self.cache.commit(sequence.lease, row.tokens)
            sequence.committed_high_water = max(sequence.committed_high_water, sequence.committed)
            if turn is not None:
                sequence.promised -= 1
                turn.output_tokens += 1
                sequence.ids.append(1)
            elif sequence.turn is None:
                self.cache.mark_idle(sequence.lease)
        self.cache.audit()

    def step(self) -> list[tuple[Sequence, int, bool]]:
        planned = self.plan()
        self.collect()
        return planned

    def observe_token_time(self, token_s: float) -> None:
        """Observe steps that took `token_s` for each token and no other time."""
        for n in range(40):
            load = StepLoad(1 + n % 3, 1 + n * 7 % 50, n)
            self.scheduler.time.observe(load, load.tokens * token_s)


# ---- order ---------------------------------------------------------------------------------


def test_plan_orders_decodes_short_turns_long_turns_appends() -> None:
    harness = SchedulerHarness()
    append = harness.sequence(30, "append")
    harness.scheduler.add_append(append)
    decode = harness.waiting_turn(10, "decode")
    harness.step()
    long = harness.waiting_turn(SHORT_TURN_TOKENS_MAX + 100, "long", first=1)
    short = harness.waiting_turn(SHORT_TURN_TOKENS_MAX, "short", first=2)
    second_append = harness.sequence(20, "second append", first=5)
    harness.scheduler.add_append(second_append)
    assert [(s.id, n) for s, n, _ in harness.plan()] == [
        ("decode", 1),
        ("short", SHORT_TURN_TOKENS_MAX),
        ("long", SHORT_TURN_TOKENS_MAX + 100),
        ("second append", 20),
    ]
    drawing = [row.sequence for row in harness.last_plan.rows if row.turn is not None]
    assert drawing == [decode, short, long]


def test_examples_of_the_plan_three_prompts() -> None:
    """The first example in the docstring of `plan`."""
    harness = SchedulerHarness(pages=1_000)
    for length in (2_000, 20, 300):
        harness.waiting_turn(length, str(length), first=length)
    assert [(s.id, n) for s, n, _ in harness.plan()] == [("20", 20), ("300", 300), ("2000", 192)]
    harness = SchedulerHarness(rows=40, pages=1_000)
    for n in range(20):
        harness.begin_turn(harness.idle_sequence(20, f"live {n}", first=n))
    harness.observe_token_time(0.001)
    for length in (2_000, 20, 300):
        harness.waiting_turn(length, str(length), first=length + 10)
    planned = {s.id: n for s, n, _ in harness.plan()}
    assert planned["20"] == 20
    assert CHUNK_TOKENS_MIN <= planned["300"] <= (20 + 20) // 2
    assert "2000" not in planned


def test_examples_of_the_plan_two_groups() -> None:
    """The second example in the docstring of `plan`."""
    harness = SchedulerHarness(pages=1_000)
    for name, group in (("a1", "a"), ("a2", "a"), ("b", "b")):
        sequence = harness.sequence(600, name, first=ord(name[-1]))
        sequence.group = group
        harness.begin_turn(sequence)
    assert [(s.id, n) for s, n, _ in harness.step()] == [("a1", 512)]
    assert [(s.id, n) for s, n, _ in harness.step()] == [("b", 512)]


def test_examples_of_the_plan_few_pages() -> None:
    """The third example in the docstring of `plan`."""
    harness = SchedulerHarness(pages=304, tokens=2_000)
    for name, length in (("small", 100), ("first", 1_000), ("second", 1_000)):
        harness.waiting_turn(length, name, first=length + len(name))
    assert [(s.id, n) for s, n, _ in harness.step()] == [("small", 100), ("first", 1_000)]
    assert [s.id for s, _, _ in harness.step()] == ["small", "first"]


def test_committed_appends_are_planned_before_provisional_ones() -> None:
    harness = SchedulerHarness(tokens=10)
    provisional, committed = (
        harness.sequence(8, "provisional"),
        harness.sequence(8, "committed", first=3),
    )
    provisional.log.provisional_start = 2
    harness.scheduler.add_append(provisional)
    harness.scheduler.add_append(committed)
    assert [(s.id, n) for s, n, _ in harness.step()] == [("committed", 8), ("provisional", 2)]


@pytest.mark.parametrize("samples_late", [False, True])
def test_penalized_turn_runs_ahead_if_samples_are_read_late(samples_late: bool) -> None:
    harness = SchedulerHarness(samples_late=samples_late)
    sampling = Sampling(repetition_penalty=1.2)
    penalized = harness.begin_turn(harness.sequence(10, "penalized"), sampling=sampling)
    plain = harness.waiting_turn(10, "plain", first=3)
    harness.step()
    first = harness.plan()
    assert [sequence for sequence, _, _ in first] == [penalized, plain]
    # A second step is planned while the first, which draws the ids, is in flight.
    second = [sequence for sequence, _, _ in harness.plan()]
    assert second == ([penalized, plain] if samples_late else [plain])


def test_only_the_last_prefill_chunk_draws_an_id() -> None:
    harness = SchedulerHarness(tokens=16)
    sequence = harness.waiting_turn(40)
    steps = [harness.step()[0] for _ in range(4)]
    assert [(n, draws) for _, n, draws in steps] == [
        (16, False),
        (16, False),
        (8, True),
        (1, True),
    ]
    assert sequence.committed == 41


def test_fully_cached_prompt_still_owes_one_token() -> None:
    harness = SchedulerHarness()
    sequence = harness.begin_turn(harness.idle_sequence(20))
    assert harness.step() == [(sequence, 1, True)]
    assert sequence.turn is not None
    assert (sequence.turn.cached_tokens, sequence.turn.residency) == (19, "hot")


def test_promised_id_is_fed_to_the_next_step() -> None:
    harness = SchedulerHarness()
    sequence = harness.waiting_turn(10)
    harness.plan()
    assert [(n, draws) for _, n, draws in harness.plan()] == [(1, True)]
    assert sequence.owed == 1
    assert sequence.launched == 11


def test_turn_draws_at_most_its_limit() -> None:
    harness = SchedulerHarness()
    harness.begin_turn(harness.sequence(10), limit=2)
    assert [len(harness.plan()) for _ in range(4)] == [1, 1, 0, 0]


# ---- long prompts --------------------------------------------------------------------------


def test_tokens_left_by_short_turns_go_to_the_shortest_long_prompt() -> None:
    harness = SchedulerHarness(tokens=200, pages=400)
    harness.waiting_turn(170, "longest")
    long, shorter = harness.waiting_turn(160, "long", 1), harness.waiting_turn(150, "shorter", 2)
    short = harness.waiting_turn(5, "short", first=3)
    assert harness.plan() == [(short, 5, True), (shorter, 150, True), (long, 45, False)]


def test_prefill_chunk_beside_decodes_fits_the_step_time() -> None:
    """Each decode costs 1 ms: the prefill chunk may double the time of the step at most."""
    harness = SchedulerHarness(rows=20, pages=400)
    live = [harness.begin_turn(harness.idle_sequence(20, f"live {n}", first=n)) for n in range(10)]
    harness.observe_token_time(0.001)
    cold = harness.waiting_turn(300, "cold", first=60)
    planned = harness.step()
    assert [s for s, _, _ in planned] == [*live, cold]
    assert CHUNK_TOKENS_MIN <= planned[-1][1] <= 20
    assert sum(n for _, n, _ in planned[:-1]) == 10


def test_prefill_chunk_has_a_minimum_on_a_slow_device() -> None:
    harness = SchedulerHarness()
    harness.observe_token_time(1.0)
    cold = harness.waiting_turn(300)
    assert harness.step() == [(cold, CHUNK_TOKENS_MIN_ALONE, False)]
    live = harness.begin_turn(harness.idle_sequence(20, "live", first=60))
    assert harness.step() == [(live, 1, True), (cold, CHUNK_TOKENS_MIN, False)]


def test_second_step_of_an_engine_has_a_small_chunk_beside_a_short_turn() -> None:
    harness = SchedulerHarness(tokens=200, pages=400)
    cold = harness.waiting_turn(300)
    assert harness.step() == [(cold, 200, False)]
    harness.scheduler.time.observe(harness.last_plan.load, 2.0)
    short = harness.waiting_turn(5, "short", first=60)
    assert harness.step() == [(short, 5, True), (cold, CHUNK_TOKENS_MIN, False)]


def test_step_that_only_prefills_may_be_discarded_for_a_short_turn() -> None:
    harness = SchedulerHarness(tokens=100)
    harness.observe_token_time(0.001)
    cold = harness.waiting_turn(300)
    assert harness.plan() == [(cold, 50, False)]
    assert harness.last_plan.discardable_s > 0
    harness.waiting_turn(SHORT_TURN_TOKENS_MAX + 1, "long", first=20)
    assert not harness.scheduler.has_new_short_turn
    short = harness.waiting_turn(SHORT_TURN_TOKENS_MAX, "short", first=60)
    assert harness.scheduler.has_new_short_turn
    harness.collect()
    assert harness.step()[0] == (short, SHORT_TURN_TOKENS_MAX, True)
    assert not harness.scheduler.has_new_short_turn
    assert harness.last_plan.discardable_s == 0, "the step has a live row"


def test_time_of_discarded_steps_is_a_share_of_that_of_others() -> None:
    harness = SchedulerHarness(pages=400)
    harness.observe_token_time(1.0)
    harness.waiting_turn(1000)
    harness.step()
    assert harness.last_plan.discardable_s == DISCARDED_S_MAX
    harness.scheduler.time.observe_discarded(DISCARDED_S_MAX)
    harness.step()
    assert harness.last_plan.discardable_s == 0
    harness.scheduler.time.observe(StepLoad(1, 1, 0), 1.0)
    harness.step()
    assert harness.last_plan.discardable_s == DISCARDED_SHARE


def test_prompts_that_take_turns_in_small_steps_leave_a_token_for_each_decode() -> None:
    """Each of two prompts has no room beside the other, and is first in the next step."""
    harness = SchedulerHarness(tokens=5, pages=200)
    decode = harness.waiting_turn(3, "decode")
    for name, first in (("long", 20), ("other", 40)):
        harness.waiting_turn(200, name, first=first)
    for _ in range(12):
        harness.step()
    assert len(decode.ids) >= 3 + 11


def test_limit_of_a_group_is_on_its_rows_and_not_on_turns_that_get_none() -> None:
    """The turn that has waited longest has no pages: another one of its group has the row."""
    harness = SchedulerHarness(pages=9, rows=2, max_group_share=0.5)
    oldest = harness.waiting_turn(13, "oldest", limit=8)
    other = harness.waiting_turn(16, "other", first=40, limit=8)
    for _ in range(4):
        harness.step()
    assert oldest.turn is not None
    assert other.turn is not None
    assert oldest.turn.output_tokens + other.turn.output_tokens == 4


def test_rows_of_a_step_are_bounded() -> None:
    harness = SchedulerHarness(rows=3, pages=200)
    turns = [harness.waiting_turn(6, f"s{n}", first=n) for n in range(5)]
    assert [s for s, _, _ in harness.step()] == turns[:3]
    for _ in range(4):
        assert len(harness.step()) == 3


def test_tokens_of_a_step_are_bounded() -> None:
    harness = SchedulerHarness(tokens=32, rows=100, pages=400)
    for n in range(50):
        harness.waiting_turn(1 + n % 40, f"s{n}", first=n)
    for _ in range(20):
        assert sum(n for _, n, _ in harness.step()) <= 32


# ---- pages ---------------------------------------------------------------------------------


def test_youngest_turn_is_retracted_first_and_the_oldest_never() -> None:
    harness = SchedulerHarness(pages=17)
    limits = (26, 20, 20)
    turns = [harness.waiting_turn(14, f"s{n}", n * 20, limits[n]) for n in range(3)]
    retracted: list[str] = []
    for _ in range(26):
        harness.step()
        for sequence in turns:
            assert sequence.turn is not None
            if not sequence.turn.is_admitted and sequence.id not in retracted:
                retracted.append(sequence.id)
    assert retracted == ["s2", "s1"]
    assert harness.scheduler.admission.retractions == 2
    assert len(turns[0].ids) == 14 + 26


def test_retracted_turn_keeps_its_ids_and_its_place_in_the_queue() -> None:
    harness = SchedulerHarness(pages=80)
    older, younger = (
        harness.waiting_turn(10, "older"),
        harness.waiting_turn(10, "younger", first=30),
    )
    for _ in range(3):
        harness.step()
    ids = array("i", younger.ids)
    harness.scheduler.retract(younger)
    harness.cache.rewind(younger.lease, 0)
    assert younger.turn is not None
    assert (younger.ids, younger.committed, younger.turn.is_admitted) == (ids, 0, False)
    new_turn = harness.waiting_turn(13, "new", first=60)
    assert harness.plan() == [(older, 1, True), (younger, 13, True), (new_turn, 13, True)]


def test_retracted_turn_loses_only_as_many_pages_as_are_needed() -> None:
    """The older turn takes a page at a time from the tail of the younger one."""
    harness = SchedulerHarness(pages=8)
    older = harness.waiting_turn(15, "older", limit=6)
    younger = harness.waiting_turn(15, "younger", first=30, limit=3)
    held = [
        (harness.step(), len(older.lease.pages), len(younger.lease.pages))[1:] for _ in range(7)
    ]
    assert held == [(4, 4), (4, 4), (5, 3), (5, 3), (5, 3), (5, 3), (5, 3)]
    assert (len(older.ids), younger.committed) == (21, 12)
    harness.scheduler.remove(older)
    older.turn = None
    harness.cache.rewind(older.lease, 0)
    assert harness.step() == [(younger, 5, True)], "a page and the id drawn last"


def test_turn_in_flight_is_awaited_before_it_is_retracted() -> None:
    harness = SchedulerHarness(pages=4)
    older = harness.waiting_turn(7, "older", limit=5)
    younger = harness.waiting_turn(7, "younger", first=30, limit=5)
    assert len(harness.plan()) == 2
    harness.plan()
    assert [s.id for s, _, _ in harness.plan()] == [], (
        "a page is needed, and all pages are in flight"
    )
    for work in ((older, 7), (younger, 7), (older, 1), (younger, 1)):
        harness.cache.commit(work[0].lease, work[1])
    assert [s.id for s, _, _ in harness.plan()] == ["older"]
    assert len(younger.lease.pages) == 1


def test_idle_leases_are_evicted_in_lru_order_before_any_retraction() -> None:
    harness = SchedulerHarness(pages=20)
    idle = [harness.idle_sequence(16, f"idle {n}", first=n * 16) for n in range(4)]
    harness.begin_turn(idle[1], limit=10)
    harness.waiting_turn(15, "new", first=70, limit=10)
    harness.step()
    harness.step()
    harness.step()
    held = [len(s.lease.pages) for s in idle]
    assert held == [2, 5, 4, 4], "pages of the least recently used, from its tail"
    assert harness.scheduler.admission.retractions == 0


def test_turn_is_admitted_only_when_its_whole_prompt_fits() -> None:
    harness = SchedulerHarness(pages=10)
    harness.waiting_turn(22, "old", limit=5)
    harness.step()
    new_turn = harness.waiting_turn(20, "new", first=30, limit=5)
    assert new_turn not in [s for s, _, _ in harness.step()]
    assert not new_turn.lease.pages
    small_turn = harness.waiting_turn(6, "small", first=60, limit=5)
    assert small_turn in [s for s, _, _ in harness.step()], (
        "a turn that fits is not blocked by one that does not"
    )


def test_admission_counts_pages_of_idle_sessions_as_available() -> None:
    """The pool is full of idle sessions: a new turn does not wait for the earlier turn to end."""
    harness = SchedulerHarness(pages=20)
    for n in range(4):
        harness.idle_sequence(16, f"idle {n}", first=n * 16)
    old = harness.waiting_turn(6, "old", first=66, limit=10)
    harness.step()
    new_turn = harness.waiting_turn(15, "new", first=70, limit=10)
    assert harness.cache.pool.free_count < 4
    assert harness.step() == [(old, 1, True), (new_turn, 15, True)]


def test_refused_admission_changes_no_state() -> None:
    """Pages, references of the tree, spilled pages and the residency report stay unchanged."""
    harness = SchedulerHarness(pages=16, host_pages=8)
    refused = harness.idle_sequence(24, "refused", first=40)
    large = harness.waiting_turn(52, "large")
    while len(large.ids) < 54:
        harness.step()
    assert refused.lease.host_pages, "the large turn has evicted it"
    harness.begin_turn(refused)
    state = [
        (list(refused.lease.pages), list(refused.lease.host_pages), refused.lease.host_end),
        (refused.committed, refused.committed_high_water, len(refused.lease.path)),
        (
            harness.cache.tree.size,
            harness.cache.tree.unreferenced,
            harness.cache.host_tier.used_pages,
        ),
    ]
    for _ in range(30):
        harness.scheduler.plan()  # not carried out: the large turn is in flight then
        assert refused.turn is not None
        assert (refused.turn.is_admitted, refused.turn.cached_tokens) == (False, None)
        assert state == [
            (list(refused.lease.pages), list(refused.lease.host_pages), refused.lease.host_end),
            (refused.committed, refused.committed_high_water, len(refused.lease.path)),
            (
                harness.cache.tree.size,
                harness.cache.tree.unreferenced,
                harness.cache.host_tier.used_pages,
            ),
        ]
        harness.cache.audit()


def test_turn_that_fills_the_pool_recomputes_its_shared_last_page() -> None:
    """No page is free for a copy of the last one: the last page is released and recomputed."""
    harness = SchedulerHarness(pages=3)
    sequence = harness.idle_sequence(12)
    harness.cache.mark_busy(sequence.lease)
    harness.cache.publish(sequence.lease, sequence.ids, 12)
    del sequence.ids[10:]
    harness.cache.rewind(sequence.lease, 10)
    harness.begin_turn(sequence, limit=2)
    assert harness.step() == [(sequence, 1, False)]
    assert (sequence.committed, len(sequence.lease.path)) == (9, 2)
    assert harness.step() == [(sequence, 1, True)]
    assert harness.step() == [(sequence, 1, True)]
    assert sequence.committed == 11


def test_append_without_a_free_page_waits_and_retracts_no_turn() -> None:
    """The append evicts no page of a turn, and stays queued."""
    harness = SchedulerHarness(pages=8)
    turn = harness.waiting_turn(27, "turn")
    harness.step()
    append = harness.sequence(8, "append", first=50)
    harness.scheduler.add_append(append)
    assert harness.step() == [(turn, 1, True)]
    assert list(append.lease.pages) == []
    assert harness.step() == [(turn, 1, True)]
    assert harness.scheduler.admission.retractions == 0


def test_removed_sequence_is_not_planned() -> None:
    harness = SchedulerHarness()
    one, two = harness.waiting_turn(10, "one"), harness.waiting_turn(10, "two", first=20)
    harness.step()
    harness.scheduler.remove(one)
    harness.scheduler.remove(one)
    assert len(harness.scheduler.admission.turns) == 1
    assert [s for s, _, _ in harness.step()] == [two]


# ---- residency -----------------------------------------------------------------------------


@pytest.mark.parametrize("host_pages", [0, 16])
def test_turn_reports_the_residency_of_its_kv(host_pages: int) -> None:
    harness = SchedulerHarness(pages=12, host_pages=host_pages)
    evicted = harness.idle_sequence(20, "evicted", first=40)
    large = harness.waiting_turn(40, "large")
    while len(large.ids) < 42:
        harness.step()
    harness.scheduler.remove(large)
    large.turn = None
    harness.cache.rewind(large.lease, 0)
    fresh = harness.waiting_turn(5, "fresh", first=70, limit=5)
    harness.begin_turn(evicted, limit=5)
    harness.step()
    assert fresh.turn is not None
    assert evicted.turn is not None
    assert (fresh.turn.residency, fresh.turn.cached_tokens) == ("none", 0)
    if host_pages:
        assert (evicted.turn.residency, evicted.turn.cached_tokens) == ("host", 19)
    else:
        assert evicted.turn.residency == "recomputed"


def test_first_turn_reuses_pages_of_the_radix_tree() -> None:
    harness = SchedulerHarness()
    closed = harness.idle_sequence(20, "closed")
    harness.cache.mark_busy(closed.lease)
    harness.cache.close(closed.lease, closed.ids, 20)
    new = harness.waiting_turn(20, "new")
    assert harness.step() == [(new, 1, True)], "one id must remain to be computed"
    assert new.turn is not None
    assert new.turn.cached_tokens == 19

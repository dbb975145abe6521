"""Who gets how much of a step, on the real cache, without a loop: plans, one by one."""

from array import array

import pytest

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule import Scheduler, StepPlan
from continuo.engine.core.schedule.budget import StepLoad
from continuo.engine.core.schedule.scheduler import CHUNK_TOKENS_MIN, SHORT_TURN_TOKENS_MAX
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import Sampling
from continuo.engine.wire.token_log import TokenLog


class Bureau:
    """A scheduler, its cache, and sequences that do as a loop would let them."""

    def __init__(
        self, *, pages: int = 100, tokens: int = 512, rows: int = 8, host_pages: int = 0
    ) -> None:
        self.cache = SessionAwareCache(pages, 4, host_pages)
        self.scheduler = Scheduler(self.cache, tokens, rows)

    def sequence(self, length: int, name: str = "s", first: int = 0) -> Sequence:
        log = TokenLog(10_000, streaming=True)
        log.ids.extend((first + n) % 90 for n in range(length))
        return Sequence(name, self.cache.open(), log, None, 0.0)

    def idle(self, length: int, name: str = "idle", first: int = 0) -> Sequence:
        """All of it is in KV, and nobody waits for it."""
        sequence = self.sequence(length, name, first)
        assert self.cache.reserve(sequence.lease, length)
        self.cache.commit(sequence.lease, length)
        sequence.committed_high_water = length
        sequence.turn_count = 2
        self.cache.mark_idle(sequence.lease)
        return sequence

    def ask(self, sequence: Sequence, limit: int = 100) -> Sequence:
        """A turn begins."""
        turn = Turn("turn", Sampling(), 0, limit, None, None, 0.0)
        turn.begin(sequence.ids)
        sequence.turn = turn
        sequence.turn_count += 1
        self.scheduler.add_turn(sequence)
        return sequence

    def waiting(self, length: int, name: str = "s", first: int = 0) -> Sequence:
        return self.ask(self.sequence(length, name, first))

    def plan(self) -> list[tuple[Sequence, int, bool]]:
        """(sequence, tokens, draws) of a step, which is still in flight."""
        self.made: StepPlan = self.scheduler.plan()
        self.cache.audit()
        for work in self.made.rows:
            if work.turn is not None:
                work.turn.launched_tokens += 1
                work.sequence.promised += 1
        return [(s, n, turn is not None) for s, n, turn in self.made.rows]

    def land(self) -> None:
        for sequence, count, turn in self.made.rows:
            self.cache.commit(sequence.lease, count)
            sequence.committed_high_water = max(sequence.committed_high_water, sequence.committed)
            if turn is not None:
                sequence.promised -= 1
                turn.output_tokens += 1
                sequence.ids.append(1)
            elif sequence.turn is None:
                self.cache.mark_idle(sequence.lease)
        self.cache.audit()

    def step(self) -> list[tuple[Sequence, int, bool]]:
        works = self.plan()
        self.land()
        return works

    def learn(self, token_s: float) -> None:
        """Steps so far have taken this long for each token, and nothing else."""
        for n in range(40):
            load = StepLoad(1 + n % 3, 1 + n * 7 % 50, n)
            self.scheduler.observe(load, load.tokens * token_s)


# ---- order ---------------------------------------------------------------------------------


def test_decodes_then_short_turns_then_long_ones_then_appends() -> None:
    bureau = Bureau()
    append = bureau.sequence(30, "append")
    bureau.scheduler.add_append(append)
    decode = bureau.waiting(10, "decode")
    bureau.step()
    long = bureau.waiting(SHORT_TURN_TOKENS_MAX + 100, "long", first=1)
    short = bureau.waiting(SHORT_TURN_TOKENS_MAX, "short", first=2)
    again = bureau.sequence(20, "again", first=5)
    bureau.scheduler.add_append(again)
    assert [(s.id, n) for s, n, _ in bureau.plan()] == [
        ("decode", 1),
        ("short", SHORT_TURN_TOKENS_MAX),
        ("long", SHORT_TURN_TOKENS_MAX + 100),
        ("again", 20),
    ]
    assert [s for s, _, draws in ((w[0], w[1], w[2]) for w in bureau.made.rows) if draws] == [
        decode,
        short,
        long,
    ]


def test_firm_appends_before_provisional_ones() -> None:
    bureau = Bureau(tokens=10)
    spoken, firm = bureau.sequence(8, "spoken"), bureau.sequence(8, "firm", first=3)
    spoken.log.provisional_start = 2
    bureau.scheduler.add_append(spoken)
    bureau.scheduler.add_append(firm)
    assert [(s.id, n) for s, n, _ in bureau.step()] == [("firm", 8), ("spoken", 2)]


def test_an_id_is_drawn_where_the_end_is_reached_and_only_there() -> None:
    bureau = Bureau(tokens=16)
    sequence = bureau.waiting(40)
    steps = [bureau.step()[0] for _ in range(4)]
    assert [(n, draws) for _, n, draws in steps] == [
        (16, False),
        (16, False),
        (8, True),
        (1, True),
    ]
    assert sequence.committed == 41


def test_a_cached_history_still_owes_one_id_to_draw_from() -> None:
    bureau = Bureau()
    sequence = bureau.ask(bureau.idle(20))
    assert bureau.step() == [(sequence, 1, True)]
    assert sequence.turn is not None
    assert (sequence.turn.cached_tokens, sequence.turn.residency) == (19, "hot")


def test_a_promised_id_is_fed_on_without_waiting_for_it() -> None:
    bureau = Bureau()
    sequence = bureau.waiting(10)
    bureau.plan()
    assert [(n, draws) for _, n, draws in bureau.plan()] == [(1, True)]
    assert sequence.owed == 1
    assert sequence.launched == 11


def test_a_turn_draws_no_more_than_its_limit() -> None:
    bureau = Bureau()
    bureau.ask(bureau.sequence(10), limit=2)
    assert [len(bureau.plan()) for _ in range(4)] == [1, 1, 0, 0]


# ---- long prompts --------------------------------------------------------------------------


def test_long_prompts_share_what_is_left_and_nobody_stands_behind_them() -> None:
    bureau = Bureau(tokens=100)
    one, two = bureau.waiting(4_000 // 25, "one"), bureau.waiting(160, "two", first=1)
    short = bureau.waiting(5, "short", first=2)
    assert bureau.plan() == [(short, 5, True), (one, 48, False), (two, 47, False)]


def test_a_cold_prompt_beside_live_turns_is_cut_to_the_time_there_is() -> None:
    """Live tokens cost 1 ms each here: the step may be made twice as long, not more."""
    bureau = Bureau(rows=20, pages=200)
    live = [bureau.ask(bureau.idle(20, f"live {n}", first=n)) for n in range(10)]
    bureau.learn(0.001)
    cold = bureau.waiting(300, "cold", first=60)
    works = bureau.step()
    assert [s for s, _, _ in works] == [*live, cold]
    assert CHUNK_TOKENS_MIN <= works[-1][1] <= 20
    assert sum(n for _, n, _ in works[:-1]) == 10


def test_a_cold_prompt_gets_something_however_slow_the_device_is() -> None:
    bureau = Bureau()
    bureau.learn(1.0)
    cold = bureau.waiting(300)
    assert bureau.step() == [(cold, CHUNK_TOKENS_MIN, False)]


def test_rows_are_bounded() -> None:
    bureau = Bureau(rows=3, pages=200)
    turns = [bureau.waiting(6, f"s{n}", first=n) for n in range(5)]
    assert [s for s, _, _ in bureau.step()] == turns[:3]
    for _ in range(4):
        assert len(bureau.step()) == 3


def test_tokens_are_bounded() -> None:
    bureau = Bureau(tokens=32, rows=100, pages=400)
    for n in range(50):
        bureau.waiting(1 + n % 40, f"s{n}", first=n)
    for _ in range(20):
        assert sum(n for _, n, _ in bureau.step()) <= 32


# ---- pages ---------------------------------------------------------------------------------


def test_the_youngest_is_retracted_first_and_the_oldest_never() -> None:
    bureau = Bureau(pages=12)
    turns = [bureau.waiting(14, f"s{n}", first=n * 20) for n in range(3)]
    lost: list[str] = []
    for _ in range(20):
        bureau.step()
        lost += [s.id for s in turns if not s.lease.pages and s.id not in lost]
        assert turns[0].lease.pages
    assert lost == ["s2", "s1"]
    assert bureau.scheduler.retractions >= 2
    assert len(turns[0].ids) == 14 + 20


def test_a_retracted_turn_keeps_its_ids_and_its_place() -> None:
    bureau = Bureau(pages=24)
    older, younger = bureau.waiting(10, "older"), bureau.waiting(10, "younger", first=30)
    for _ in range(3):
        bureau.step()
    ids = array("i", younger.ids)
    bureau.scheduler.retract(younger)
    assert younger.turn is not None
    assert (younger.ids, younger.committed, younger.turn.is_admitted) == (ids, 0, False)
    assert list(younger.lease.pages) == []
    newcomer = bureau.waiting(10, "newcomer", first=60)
    assert bureau.plan() == [(older, 1, True), (younger, 13, True), (newcomer, 10, True)]


def test_a_turn_in_flight_is_not_retracted_but_waited_for() -> None:
    bureau = Bureau(pages=4)
    older, younger = bureau.waiting(7, "older"), bureau.waiting(7, "younger", first=30)
    assert len(bureau.plan()) == 2
    bureau.plan()
    assert [s.id for s, _, _ in bureau.plan()] == [], "it needs a page, and all are in flight"
    assert younger.lease.pages
    for work in ((older, 7), (younger, 7), (older, 1), (younger, 1)):
        bureau.cache.commit(work[0].lease, work[1])
    assert [s.id for s, _, _ in bureau.plan()] == ["older"]
    assert not younger.lease.pages


def test_idle_leases_go_before_any_turn_least_recently_used_first() -> None:
    bureau = Bureau(pages=20)
    idle = [bureau.idle(16, f"idle {n}", first=n * 16) for n in range(4)]
    bureau.ask(idle[1])
    bureau.waiting(15, "new", first=70)
    bureau.step()
    bureau.step()
    bureau.step()
    held = [len(s.lease.pages) for s in idle]
    assert held == [2, 5, 4, 4], "pages of the least recently used, from its tail"
    assert bureau.scheduler.retractions == 0


def test_a_newcomer_is_admitted_only_when_all_its_prompt_could_be_had() -> None:
    bureau = Bureau(pages=10)
    bureau.waiting(22, "old")
    bureau.step()
    newcomer = bureau.waiting(20, "new", first=30)
    assert newcomer not in [s for s, _, _ in bureau.step()]
    assert not newcomer.lease.pages
    small = bureau.waiting(6, "small", first=60)
    assert small in [s for s, _, _ in bureau.step()], "who fits does not stand behind who does not"


def test_admission_counts_what_idle_sessions_hold() -> None:
    """The pool is full of them: a newcomer does not wait for the turn before it to end."""
    bureau = Bureau(pages=20)
    for n in range(4):
        bureau.idle(16, f"idle {n}", first=n * 16)
    old = bureau.waiting(6, "old", first=66)
    bureau.step()
    newcomer = bureau.waiting(15, "new", first=70)
    assert bureau.cache.pool.free_count < 4
    assert bureau.step() == [(old, 1, True), (newcomer, 15, True)]


def test_admission_refused_again_and_again_changes_nothing() -> None:
    """Not the books, not the tree's holds, not what is spilled, not what the turn will report."""
    bureau = Bureau(pages=16, host_pages=8)
    refused = bureau.idle(24, "refused", first=40)
    hog = bureau.waiting(52, "hog")
    while len(hog.ids) < 54:
        bureau.step()
    assert refused.lease.host_pages, "the hog has pushed it out"
    bureau.ask(refused)
    state = [
        (list(refused.lease.pages), list(refused.lease.host_pages), refused.lease.host_end),
        (refused.committed, refused.committed_high_water, len(refused.lease.path)),
        (bureau.cache.tree.size, bureau.cache.tree.unreferenced, bureau.cache.host_tier.used_pages),
    ]
    for _ in range(30):
        bureau.scheduler.plan()  # nothing of it is carried out: the hog is in flight then
        assert refused.turn is not None
        assert (refused.turn.is_admitted, refused.turn.cached_tokens) == (False, None)
        assert state == [
            (list(refused.lease.pages), list(refused.lease.host_pages), refused.lease.host_end),
            (refused.committed, refused.committed_high_water, len(refused.lease.path)),
            (
                bureau.cache.tree.size,
                bureau.cache.tree.unreferenced,
                bureau.cache.host_tier.used_pages,
            ),
        ]
        bureau.cache.audit()


def test_a_pool_full_of_one_turn_whose_last_page_is_shared_makes_do() -> None:
    """There is no page to copy the last one to: it is let go, and computed again."""
    bureau = Bureau(pages=3)
    sequence = bureau.idle(12)
    bureau.cache.mark_busy(sequence.lease)
    bureau.cache.publish(sequence.lease, sequence.ids, 12)
    del sequence.ids[10:]
    bureau.cache.rewind(sequence.lease, 10)
    bureau.ask(sequence, limit=2)
    assert bureau.step() == [(sequence, 1, False)]
    assert (sequence.committed, len(sequence.lease.path)) == (9, 2)
    assert bureau.step() == [(sequence, 1, True)]
    assert bureau.step() == [(sequence, 1, True)]
    assert sequence.committed == 11


def test_an_append_that_finds_no_page_waits_for_its_turn() -> None:
    """It takes nothing from a turn, and is not tried again and again."""
    bureau = Bureau(pages=8)
    turn = bureau.waiting(27, "turn")
    bureau.step()
    append = bureau.sequence(8, "append", first=50)
    bureau.scheduler.add_append(append)
    assert bureau.step() == [(turn, 1, True)]
    assert list(append.lease.pages) == []
    assert bureau.step() == [(turn, 1, True)]
    assert bureau.scheduler.retractions == 0


def test_who_is_removed_is_planned_no_more() -> None:
    bureau = Bureau()
    one, two = bureau.waiting(10, "one"), bureau.waiting(10, "two", first=20)
    bureau.step()
    bureau.scheduler.remove(one)
    bureau.scheduler.remove(one)
    assert bureau.scheduler.turns == 1
    assert [s for s, _, _ in bureau.step()] == [two]


# ---- what a turn reports of its KV ---------------------------------------------------------


@pytest.mark.parametrize("host_pages", [0, 16])
def test_residency(host_pages: int) -> None:
    bureau = Bureau(pages=12, host_pages=host_pages)
    evicted = bureau.idle(20, "evicted", first=40)
    hog = bureau.waiting(40, "hog")
    while len(hog.ids) < 42:
        bureau.step()
    bureau.scheduler.remove(hog)
    hog.turn = None
    bureau.cache.rewind(hog.lease, 0)
    fresh = bureau.waiting(5, "fresh", first=70)
    bureau.ask(evicted)
    bureau.step()
    assert fresh.turn is not None
    assert evicted.turn is not None
    assert (fresh.turn.residency, fresh.turn.cached_tokens) == ("none", 0)
    if host_pages:
        assert (evicted.turn.residency, evicted.turn.cached_tokens) == ("host", 19)
    else:
        assert evicted.turn.residency == "recomputed"


def test_a_first_turn_takes_what_the_tree_knows() -> None:
    bureau = Bureau()
    told = bureau.idle(20, "told")
    bureau.cache.mark_busy(told.lease)
    bureau.cache.close(told.lease, told.ids, 20)
    new = bureau.waiting(20, "new")
    assert bureau.step() == [(new, 4, True)], "20 ids are five pages; one id must be left to do"
    assert new.turn is not None
    assert new.turn.cached_tokens == 16

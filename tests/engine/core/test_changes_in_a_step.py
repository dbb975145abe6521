"""Tests of sessions, turns and pages that go while a loop over others runs. tests/tree lists the
loops, and the test of each (test_changing_lists.py)."""

from array import array

from continuo.engine.core.cache import PageLease, SessionAwareCache
from continuo.engine.wire.messages import (
    CloseSession,
    ForkSession,
    Generate,
    Sampling,
    SessionExpired,
)
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

PROMPTS = {name: prompt_ids(12, seed=n) for n, name in enumerate(("ends", "forks", "again", "on"))}
IDS = array("i", range(40))


def computed(cache: SessionAwareCache, length: int) -> PageLease:
    lease = cache.open()
    assert cache.reserve(lease, length)
    cache.commit(lease, length)
    return lease


def test_rows_of_one_step_end_close_and_fork_sessions() -> None:
    """The results of four rows are applied: the first closes its session, the second lets a fork
    begin, and the third the next turn."""
    core = CoreHarness(batched_tokens=64)
    for name, prompt in PROMPTS.items():
        core.open(name)
        core.append(name, prompt)
        core.generate(name, 6 if name == "on" else 1)
    step = core.launch()
    assert step is not None
    assert [row.sequence.id for row in step.rows] == list(PROMPTS)
    number = core.next_number()
    assert core.submit(CloseSession(number, "ends")) is None
    assert core.submit(ForkSession(number + 1, "forks", "child")) is None
    sampling = Sampling(max_tokens=2)
    assert core.submit(Generate(number + 2, "again", "next", sampling)) is None
    core.collect()
    assert core.turn_end("ends").reason == "cancelled"
    core.generate("child", 3, "of child")
    core.run(ahead=1)
    for name, count in (("forks", 1), ("again", 1), ("on", 6)):
        assert core.turn_ids(name) == oracle(PROMPTS[name], count)
    log = PROMPTS["again"] + core.turn_ids("again")
    assert core.turn_ids("again", "next") == oracle(log, 2)
    log = PROMPTS["forks"] + core.turn_ids("forks")
    assert core.turn_ids("child", "of child") == oracle(log, 3)


def test_session_expires_while_another_one_runs() -> None:
    core = CoreHarness()
    for name, prompt in PROMPTS.items():
        core.open(name, timeout_s=10.0)
        core.append(name, prompt)
    core.run()
    core.generate("on", 4)
    core.step()
    core.advance_clock(10.0)
    assert [e.session for e in core.events_of(SessionExpired)] == ["ends", "forks", "again"]
    core.run()
    assert core.turn_ids("on") == oracle(PROMPTS["on"], 4)


def test_append_takes_the_pages_of_another_one() -> None:
    """The pool has room for two of three appends: the third takes the pages of an idle one, or has
    none, and is computed for its turn."""
    core = CoreHarness(pages=7, page_size=4, batched_tokens=64)
    names = ("ends", "forks", "again")
    for name in names:
        core.open(name)
        core.append(name, PROMPTS[name])
    core.run(ahead=1)
    for name in names:
        core.generate(name, 2)
        core.run(ahead=1)
        assert core.turn_ids(name) == oracle(PROMPTS[name], 2)


def test_evicted_lease_leaves_its_shared_pages() -> None:
    """The only idle lease has two pages of its own and two of the tree, which are evicted after
    it."""
    cache = SessionAwareCache(6, 4)
    idle = computed(cache, 16)
    cache.publish(idle, IDS, 8)
    cache.mark_idle(idle)
    assert computed(cache, 24).committed == 24
    assert (idle.committed, cache.tree.size) == (0, 0)
    cache.audit()


def test_reset_discards_shared_and_spilled_kv() -> None:
    cache = SessionAwareCache(8, 4, host_pages=4)
    spilled = computed(cache, 16)
    cache.mark_idle(spilled)
    first, second = computed(cache, 16), cache.open()
    cache.publish(first, IDS, 12)
    cache.match(second, IDS, 12)
    assert cache.reserve(second, 8)
    cache.commit(second, 8)
    assert len(spilled.host_pages) > 0
    cache.reset()
    cache.audit()
    leases = (spilled, first, second)
    assert [lease.resident_tokens for lease in leases] == [0, 0, 0]
    assert (cache.pool.free_count, cache.host_tier.used_pages, cache.tree.size) == (8, 0, 0)
    assert cache.reserve(spilled, 32)

"""Tests of ResidentCache: its bound, the shares of groups, and which entry is evicted."""

import contextvars
import threading

from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.resident_cache import ResidentCache, cache_group

BYTES_MAX = 1_000


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 400), st.sampled_from("abc"), st.booleans()),
        max_size=80,
    )
)
def test_cache_holds_at_most_its_bound(
    steps: list[tuple[int, int, str, bool]],
) -> None:
    cache: ResidentCache[int, int] = ResidentCache(BYTES_MAX)
    costs: dict[int, int] = {}
    for step, (key, cost, group, is_removed) in enumerate(steps):
        if is_removed:
            cache.remove(key)
            assert cache.get(key) is None
            continue
        kept = cache.add(key, step, cost, group)
        assert kept is (cost <= BYTES_MAX // 4)
        assert cache.get(key) == (step if kept else None), "the newest entry is not evicted"
        costs[key] = cost
        held = [key for key in costs if key in cache]
        assert cache.held_bytes == sum(costs[key] for key in held) <= BYTES_MAX
        assert len(cache) == len(held)
    cache.clear()
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_group_over_its_share_makes_room_for_others() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX)
    cache.add("theirs", None, 100, "small")
    for n in range(50):
        cache.add(f"mine {n}", None, 100, "large")
    assert "theirs" in cache, "it is the least recently used, in a group within its share"
    assert cache.held_bytes == BYTES_MAX
    for n in range(20):
        cache.add(f"theirs {n}", None, 100, "small")
    assert sum(f"mine {n}" in cache for n in range(50)) >= 2, "the share of a group stays"


def test_entry_counts_for_the_group_of_its_task() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX)
    cache_group.set("small")
    cache.add("theirs", None, 100)

    def add_more() -> None:
        cache_group.set("large")
        for n in range(50):
            cache.add(f"mine {n}", None, 100)

    contextvars.copy_context().run(add_more)
    assert "theirs" in cache, "it is of a group within its share"


def test_entry_over_the_share_stays_while_others_leave_room() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX, entry_bytes_max=BYTES_MAX)
    assert not cache.add("larger than the cache", None, BYTES_MAX + 1, "large")
    assert cache.add("theirs", None, 100, "small")
    assert cache.add("mine", None, 900, "large")
    assert "mine" in cache
    assert cache.add("theirs too", None, 100, "small")
    assert "mine" not in cache
    assert ("theirs" in cache, cache.held_bytes) == (True, 200)


def test_most_costly_of_the_oldest_entries_is_evicted() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX)
    cache.add("cheap", None, 10)
    cache.add("costly", None, 240)
    for n in range(4):
        cache.add(f"{n}", None, 200)
    assert "costly" not in cache
    assert "cheap" in cache


def test_used_entry_stays() -> None:
    cache: ResidentCache[int, int] = ResidentCache(BYTES_MAX)
    for n in range(100):
        cache.add(n, n, 50)
        assert cache.get(0) is not None


def test_threads_keep_the_account() -> None:
    cache: ResidentCache[int, int] = ResidentCache(BYTES_MAX)

    def work(seed: int) -> None:
        for n in range(3_000):
            key = (n * 7 + seed) % 31
            cache.add(key, n, key * 7, "ab"[seed % 2])
            cache.get((key + 1) % 31)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.held_bytes == sum(key * 7 for key in range(31) if key in cache) <= BYTES_MAX


def test_shared_bytes_are_charged_to_their_group() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX)
    cache.add("theirs", None, 100, "small")
    for n in range(4):
        cache.add(f"mine {n}", None, 100, "large")
    cache.charge("large", 500)
    assert cache.held_bytes == BYTES_MAX
    cache.charge("large", 1)
    assert cache.held_bytes == BYTES_MAX - 99
    assert "theirs" in cache, "the other group is over its share"
    cache.charge("large", -501)
    assert cache.held_bytes == 400


def test_number_of_entries_is_bounded() -> None:
    cache: ResidentCache[int, None] = ResidentCache(BYTES_MAX, entries_max=3)
    for n in range(5):
        cache.add(n, None, 0)
    assert [n for n in range(5) if n in cache] == [2, 3, 4]


def test_one_candidate_is_the_least_recently_used() -> None:
    cache: ResidentCache[str, None] = ResidentCache(BYTES_MAX, candidates=1)
    cache.add("cheap", None, 10)
    cache.add("costly", None, 240)
    for n in range(4):
        cache.add(f"{n}", None, 190)
    assert "cheap" not in cache
    assert "costly" in cache


def test_what_leaves_the_cache_is_reported_once() -> None:
    """The bytes that entries share are given back as they leave, also where many do at once."""
    removed: list[int] = []

    def on_removed(key: int, value: str) -> None:
        assert value == f"value {key}"
        assert key not in cache
        removed.append(key)
        cache.charge("a", -5)

    cache: ResidentCache[int, str] = ResidentCache(100_000, candidates=1, on_removed=on_removed)
    for n in range(5_000):
        cache.charge("a", 5)
        assert cache.add(n, f"value {n}", 10, "a")
    assert cache.held_bytes == 75_000
    cache.remove(0)
    assert removed == [0]
    cache.charge("a", 5)
    cache.add(1, "value 1", 10, "a")
    assert removed == [0, 1], "the value before was replaced"
    cache.charge("a", 90_000)
    assert removed == [0, 1, *range(2, len(removed))], "the least recently used first"
    assert 5_000 > len(removed) > 4_000
    assert cache.held_bytes <= 100_000
    cache.charge("a", -90_000)
    cache.clear()
    assert sorted(removed) == sorted([*range(5_000), 1])
    assert cache.held_bytes == 0

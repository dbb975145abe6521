"""Tests of cache cases that random histories seldom reach."""

from array import array

from continuo.engine.core.cache import PageLease, SessionAwareCache

IDS = array("i", range(20))


def computed(cache: SessionAwareCache, length: int) -> PageLease:
    lease = cache.open()
    assert cache.reserve(lease, length)
    cache.commit(lease, length)
    return lease


def test_match_never_shortens_a_spilled_lease() -> None:
    """The radix tree holds more of the log than the device, and less than the host."""
    cache = SessionAwareCache(12, 4, host_pages=8)
    spilled = computed(cache, 20)
    cache.mark_idle(spilled)
    cache.publish(computed(cache, 12), IDS, 12)
    greedy = computed(cache, 32)
    assert (spilled.committed, spilled.resident_tokens) == (4, 20)
    assert cache.match(spilled, IDS, 20) == 4
    assert spilled.resident_tokens == 20
    cache.audit()
    cache.mark_busy(spilled)
    cache.close(greedy, IDS, 0)
    assert cache.recall(spilled)
    assert (spilled.committed, cache.host_tier.used_pages) == (20, 0)
    cache.audit()


def test_host_tier_evicts_its_oldest_pages_first() -> None:
    cache = SessionAwareCache(8, 4, host_pages=4)
    leases = [computed(cache, 8) for _ in range(3)]
    for lease in leases:
        cache.mark_idle(lease)
    computed(cache, 32)
    assert [len(lease.host_pages) for lease in leases] == [0, 2, 2]
    assert [lease.resident_tokens for lease in leases] == [0, 8, 8]
    cache.audit()


def test_pages_being_recalled_are_not_evicted_by_the_spill_they_cause() -> None:
    """The host tier is full, and the recall evicts another session from the device. The host tier
    has no room for that one, so its pages are evicted, not spilled."""
    cache = SessionAwareCache(6, 4, host_pages=4)
    recalled = computed(cache, 16)
    cache.mark_idle(recalled)
    other = computed(cache, 24)
    assert len(recalled.host_pages) == 4
    cache.mark_idle(other)
    cache.mark_busy(recalled)
    assert cache.recall(recalled)
    assert (recalled.committed, len(recalled.host_pages)) == (16, 0)
    assert len(other.pages) == 2
    cache.audit()

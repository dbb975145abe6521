"""Cases that random lives seldom meet."""

from array import array

from continuo.engine.core.cache import Lease, SessionAwareCache

IDS = array("i", range(20))


def computed(cache: SessionAwareCache, length: int) -> Lease:
    lease = cache.open()
    assert cache.reserve(lease, length)
    cache.commit(lease, length)
    return lease


def test_a_match_takes_no_less_than_what_was_spilled() -> None:
    """The tree knows more than is on the device, and less than is on the host."""
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


def test_the_host_forgets_what_has_been_there_longest() -> None:
    cache = SessionAwareCache(8, 4, host_pages=4)
    leases = [computed(cache, 8) for _ in range(3)]
    for lease in leases:
        cache.mark_idle(lease)
    computed(cache, 32)
    assert [len(lease.host_pages) for lease in leases] == [0, 2, 2]
    assert [lease.resident_tokens for lease in leases] == [0, 8, 8]
    cache.audit()


def test_what_is_being_recalled_is_not_pushed_out_by_whom_it_pushes() -> None:
    """The host is full; the room on the device is another session's, which must be spilled. There
    is no room for that one on the host, so it is what is forgotten."""
    cache = SessionAwareCache(6, 4, host_pages=4)
    wanted = computed(cache, 16)
    cache.mark_idle(wanted)
    other = computed(cache, 24)
    assert len(wanted.host_pages) == 4
    cache.mark_idle(other)
    cache.mark_busy(wanted)
    assert cache.recall(wanted)
    assert (wanted.committed, len(wanted.host_pages)) == (16, 0)
    assert len(other.pages) == 2
    cache.audit()

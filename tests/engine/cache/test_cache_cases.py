"""Cases that random lives seldom meet."""

from array import array

from engine.cache import Lease, SessionAwareCache

IDS = array("i", range(20))


def computed(cache: SessionAwareCache, length: int) -> Lease:
    lease = cache.open()
    assert cache.grow(lease, length)
    cache.commit(lease, length)
    return lease


def test_a_match_takes_no_less_than_what_was_spilled() -> None:
    """The tree knows more than is on the device, and less than is on the host."""
    cache = SessionAwareCache(12, 4, host_pages=8)
    spilled = computed(cache, 20)
    cache.rest(spilled)
    cache.publish(computed(cache, 12), IDS, 12)
    greedy = computed(cache, 32)
    assert (spilled.committed, spilled.known) == (4, 20)
    assert cache.match(spilled, IDS, 20) == 4
    assert spilled.known == 20
    cache.audit()
    cache.wake(spilled)
    cache.close(greedy, IDS, 0)
    assert cache.recall(spilled)
    assert (spilled.committed, cache.host.used) == (20, 0)
    cache.audit()

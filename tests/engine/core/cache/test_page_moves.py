"""Tests of the moves that the cache records: which pages are blanked, and when."""

from array import array

import pytest

from continuo.engine.batch import STATE_POOL, PageMove, WindowGroup
from continuo.engine.core.cache import SessionAwareCache

IDS = array("i", range(40))


def blank(*pages: int, group: int = 0) -> list[PageMove]:
    return [PageMove("blank", page, page, group) for page in pages]


def test_page_is_blanked_when_it_is_allocated_for_tokens() -> None:
    cache = SessionAwareCache(8, 4, blanks_pages=True)
    lease = cache.open()
    assert cache.reserve(lease, 6)
    assert cache.take_moves() == blank(0, 1)
    assert cache.reserve(lease, 2)
    assert cache.take_moves() == []
    assert cache.reserve(lease, 1)
    assert cache.take_moves() == blank(2)


def test_page_that_a_fork_copies_is_not_blanked() -> None:
    cache = SessionAwareCache(8, 4, blanks_pages=True)
    lease = cache.open()
    assert cache.reserve(lease, 7)
    cache.commit(lease, 7)
    cache.take_moves()
    child = cache.fork(lease, IDS, 6, 4)
    assert cache.reserve(child, 1)
    assert cache.take_moves() == [PageMove("copy", 1, 2)]


def test_shared_page_that_is_copied_before_a_write_is_not_blanked() -> None:
    cache = SessionAwareCache(8, 4, blanks_pages=True)
    lease = cache.open()
    assert cache.reserve(lease, 8)
    cache.commit(lease, 8)
    cache.publish(lease, IDS, 8)
    cache.rewind(lease, 6)
    cache.take_moves()
    assert cache.reserve(lease, 3)
    assert cache.take_moves() == [PageMove("copy", 1, 2), *blank(3)]


def test_page_is_spilled_before_it_is_blanked_and_not_blanked_when_it_is_recalled() -> None:
    cache = SessionAwareCache(2, 4, host_pages=2, blanks_pages=True)
    idle, greedy = cache.open(), cache.open()
    assert cache.reserve(idle, 8)
    cache.commit(idle, 8)
    cache.mark_idle(idle)
    cache.take_moves()
    assert cache.reserve(greedy, 8)
    spilled = [PageMove("spill", 0, 0), PageMove("spill", 1, 1)]
    assert cache.take_moves() == [*spilled, *blank(1, 0)]
    cache.commit(greedy, 8)
    cache.close(greedy, IDS, 0)
    cache.mark_busy(idle)
    assert cache.recall(idle)
    loaded = [PageMove("load", slot, page) for slot, page in enumerate(idle.pages)]
    assert cache.take_moves() == loaded


def test_window_pages_and_state_slots_are_blanked() -> None:
    cache = SessionAwareCache(8, 4, 0, [WindowGroup(6, 8)], 4, blanks_pages=True)
    lease = cache.open()
    assert cache.reserve(lease, 5)
    moves = [*blank(0, 1, group=1), *blank(0, group=STATE_POOL), *blank(0, 1)]
    assert cache.take_moves() == moves


@pytest.mark.parametrize("slots", [0, 4])
def test_nothing_is_blanked_by_default(slots: int) -> None:
    cache = SessionAwareCache(8, 4, 0, [WindowGroup(6, 8)], slots)
    assert cache.reserve(cache.open(), 9)
    assert cache.take_moves() == []

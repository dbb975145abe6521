"""Tests of the index of n-grams: what it finds equals a search of the whole log, after any history
of appends and cuts, within its bounds."""

import random
from array import array

import pytest

from continuo.engine.core.speculation import ngram_index
from continuo.engine.core.speculation.ngram_index import (
    CANDIDATES_MAX,
    UPDATE_IDS_MAX,
    NgramIndex,
)
from continuo.engine.wire.messages import AppendIds
from continuo.engine.wire.token_log import TokenLog


def search(ids: list[int], least: int, most: int) -> int:
    """Find the longest of the newest occurrences of the last ids, and of those the newest."""
    length = len(ids)
    if length < least:
        return -1
    places = [p for p in range(least, length) if ids[p - least : p] == ids[length - least :]]
    newest = places[: -CANDIDATES_MAX - 1 : -1]

    def match(place: int) -> int:
        common = 0
        while common < min(most, place) and ids[place - common - 1] == ids[length - common - 1]:
            common += 1
        return common

    return max(newest, key=lambda place: (match(place), place), default=-1)


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 4), (2, 3), (3, 3)])
def test_found_place_equals_that_of_a_search_after_appends_and_cuts(least: int, most: int) -> None:
    source = random.Random(least * 10 + most)
    log = TokenLog(10_000, streaming=True)
    index = log.index = NgramIndex(log.ids, least, most)
    found = 0
    for n in range(400):
        new = [source.randrange(3) for _ in range(source.randrange(9))]
        match source.randrange(5):
            case 0:
                log.rewind(source.randint(log.length // 2, log.length))
            case 1:
                log.append(AppendIds(n, "s", new, "provisional"))
            case 2:
                log.take_provisional()
                log.ids.extend(new)
            case _:
                log.append(AppendIds(n, "s", new))
        if source.random() < 0.7:
            index.update()
            assert index.find() == search(log.ids.tolist(), least, most)
            found += index.find() >= 0
    assert found > 50


def test_cut_to_nothing_empties_the_index() -> None:
    ids = array("i", [1, 2, 1, 2, 1])
    index = NgramIndex(ids, 2, 2)
    index.update()
    assert index.find() == 3
    index.truncate(0)
    del ids[:]
    ids.extend([1, 2, 1, 2])
    assert index.find() == -1
    index.update()
    assert index.find() == 2


def test_update_indexes_a_bounded_number_of_ids() -> None:
    ids = array("i", [*range(3 * UPDATE_IDS_MAX), 0, 1])
    index = NgramIndex(ids, 2, 2)
    for _ in range(3):
        index.update()
    assert index.find() == 2
    ids.extend([UPDATE_IDS_MAX, UPDATE_IDS_MAX + 1])
    late = NgramIndex(ids, 2, 2)
    late.update()
    assert late.find() == -1, "the id behind the n-gram is in the second update"
    late.update()
    assert late.find() == UPDATE_IDS_MAX + 2


def test_index_holds_a_bounded_number_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_index, "POSITIONS_MAX", 64)
    ids = array("i")
    index = NgramIndex(ids, 2, 2)
    for n in range(1000):
        ids.append(n)
        index.update()
        assert len(index._older) <= 64
        assert len(index._newest) <= 64
    ids.extend([990, 991])
    index.update()
    assert index.find() == 992
    ids.extend([5, 6])
    index.update()
    assert index.find() == -1, "the index no longer covers the begin of the log"
    index.truncate(900)
    del ids[900:]
    ids.extend([890, 891])
    for _ in range(3):
        index.update()
    assert index.find() == 892

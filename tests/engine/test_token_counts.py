"""Tests of the counts that penalties are computed from."""

import random
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import cast

from continuo.engine.batch import TokenCounts
from continuo.engine.wire.messages import AppendIds
from continuo.engine.wire.token_log import TokenLog


def counted(counts: TokenCounts) -> dict[int, int]:
    pairs = zip(counts.ids, counts.occurrences, strict=True)
    return {id: occurrences for id, occurrences in pairs if occurrences}


def test_counts_follow_a_log_that_grows_and_is_cut() -> None:
    source = random.Random(1)
    log = TokenLog(10_000, streaming=True)
    counts = log.count_ids()
    for n in range(300):
        new = [source.randrange(20) for _ in range(source.randrange(8))]
        match source.randrange(4):
            case 0:
                log.rewind(source.randint(0, log.length))
            case 1:
                log.append(AppendIds(n, "s", new, "provisional"))
            case 2:
                log.append(AppendIds(n, "s", new))
            case _:
                log.take_provisional()
                log.ids.extend(new)
        if source.random() < 0.7:
            assert log.count_ids() is counts
            assert counted(counts) == Counter(log.ids)


def test_counts_begin_at_their_start() -> None:
    log = array("i", [1, 2, 2, 3])
    counts = TokenCounts(log, 2)
    log.extend([3, 4])
    counts.update()
    assert counted(counts) == {2: 1, 3: 2, 4: 1}
    counts.truncate(5)
    del log[5:]
    assert counted(counts) == {2: 1, 3: 2}
    counts.truncate(0)
    assert not counted(counts)
    assert counts.end == 2


def test_update_reads_only_new_ids() -> None:
    """The cost of a step does not grow with the history."""

    class Log:
        """An array that counts the ids that are read."""

        def __init__(self, ids: Iterable[int]) -> None:
            self.ids, self.read = array("i", ids), 0

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, part: slice) -> "array[int]":
            self.read += len(self.ids[part])
            return self.ids[part]

    log = Log(range(5000))
    counts = TokenCounts(cast("array[int]", log))
    log.read = 0
    for id in range(100):
        log.ids.append(id)
        counts.update()
    assert log.read == 100

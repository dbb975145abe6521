"""The order in which readers that wait have their turns."""

from dataclasses import dataclass

from continuo.realtime.server.hardening.waiting_readers import WaitingReaders


@dataclass(eq=False)
class Connection:
    owner: object
    unread_bytes: int
    is_light = False

    def parse_slice(self) -> bool:
        return False

    def spend(self, seconds: float) -> None: ...

    def abort(self) -> None: ...


def take_all(waiting: WaitingReaders) -> list[object]:
    taken: list[object] = []
    while (reader := waiting.next()) is not None:
        waiting.remove(reader)
        taken.append(reader)
    return taken


def test_smallest_readers_come_first_and_among_them_owners_take_turns() -> None:
    waiting = WaitingReaders()
    large = Connection("own", 100_000)
    first, second, third = (Connection(None, size) for size in (300, 200, 250))
    own, later = Connection("own", 220), Connection("own", 210)
    for reader in (large, first, second, third, own, later):
        waiting.add(reader, 0.0)
    assert take_all(waiting) == [first, own, second, later, third, large]
    assert not waiting
    assert waiting.next() is waiting.oldest() is None


def test_owner_that_had_its_turn_comes_after_one_that_had_none() -> None:
    waiting = WaitingReaders()
    readers = [Connection(None, 100) for _ in range(3)]
    for reader in readers:
        waiting.add(reader, 0.0)
    waiting.remove(readers[0])
    own, other = Connection("own", 100), Connection("other", 100)
    waiting.add(own, 0.0)
    waiting.add(other, 0.0)
    assert take_all(waiting) == [readers[1], own, other, readers[2]]


def test_removed_reader_has_no_turn_and_the_oldest_is_known() -> None:
    waiting = WaitingReaders()
    first, second = Connection("own", 100_000), Connection(None, 100)
    waiting.add(first, 0.25)
    waiting.add(second, 0.5)
    assert waiting.oldest() is first
    assert waiting.remove(first).least_s == 0.25
    assert (first in waiting, second in waiting) == (False, True)
    assert waiting.oldest() is second
    assert take_all(waiting) == [second]


def test_owner_may_change_while_its_reader_waits() -> None:
    """A request may be authenticated while more input of its connection waits."""
    waiting = WaitingReaders()
    reader = Connection(None, 100)
    waiting.add(reader, 0.0)
    reader.owner, reader.unread_bytes = "own", 100_000
    waiting.remove(reader)
    assert not waiting
    assert take_all(waiting) == []

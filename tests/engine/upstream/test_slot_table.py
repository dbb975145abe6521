"""Tests of the tables of slots and files."""

from array import array
from collections.abc import Callable

import pytest

from continuo.engine.upstream.slots import SlotContent, SlotFiles, SlotTable


def use(slots: SlotTable, session: str, *ids: int) -> int:
    slot = slots.begin(session)
    slots.end(slot, session, array("i", ids))
    return slot


def test_least_recently_used_slot_gives_way() -> None:
    slots = SlotTable(2)
    assert [use(slots, session) for session in "ababcb"] == [0, 1, 0, 1, 0, 1]
    assert slots.used == 2


def test_slot_with_a_request_gives_way_only_if_all_have_one() -> None:
    slots = SlotTable(2)
    assert (slots.begin("a"), use(slots, "b"), use(slots, "c")) == (0, 1, 1)
    assert (slots.begin("c"), slots.begin("d")) == (1, 0)


def test_requests_of_one_session_share_its_slot() -> None:
    slots = SlotTable(2)
    assert (slots.begin("a"), slots.begin("a")) == (0, 0)


def test_slot_holds_the_ids_of_the_last_request() -> None:
    slots = SlotTable(1)
    use(slots, "a", 1, 2, 3)
    assert slots.count_held(0, array("i", [1, 2, 9])) == 2
    slots.end(slots.begin("a"), "a", None)
    assert slots.count_held(0, array("i", [1, 2, 9])) == 0


def test_ids_of_another_session_are_not_expected() -> None:
    slots = SlotTable(1)
    use(slots, "a", 1, 2, 3)
    slots.begin("b")
    assert slots.count_held(0, array("i", [1, 2, 3])) == 0
    slots.end(0, "a", array("i", [1, 2, 3]))
    assert slots.count_held(0, array("i", [1, 2, 3])) == 0


def test_closed_session_frees_its_slot() -> None:
    slots = SlotTable(2)
    use(slots, "a", 1)
    use(slots, "b")
    slots.close("a")
    assert slots.used == 1
    assert slots.count_held(0, array("i", [1])) == 0
    assert use(slots, "c") == 0


def test_kv_of_a_session_is_in_its_slot_until_that_is_taken() -> None:
    slots = SlotTable(1)
    assert slots.find_kv("a") == "none"
    slot = slots.begin("a")
    assert slots.find_kv("a") == "device", "while it is computed"
    slots.end(slot, "a", array("i", [1]))
    assert slots.find_kv("a") == "device"
    slots.clear()
    assert slots.find_kv("a") == "none", "the server may have been started anew"
    use(slots, "a", 1)
    use(slots, "b", 1)
    assert [slots.find_kv("a"), slots.find_kv("b")] == ["none", "device"]


def test_slot_still_holds_what_is_of_the_session_that_gave_way() -> None:
    slots = SlotTable(1)
    use(slots, "a", 1, 2)
    slots.release(slots.begin("b"))
    assert slots.displaced == {0: SlotContent("a", array("i", [1, 2]))}
    assert use_none(slots, "a") == 2, "it was back before another request was sent"
    assert slots.displaced == {}


def use_none(slots: SlotTable, session: str) -> int:
    """Begin a request of a session that is never sent. Returns how many ids its slot holds."""
    slot = slots.begin(session)
    slots.release(slot)
    return len(slots.content_of(slot).ids)


@pytest.mark.parametrize("end", [SlotTable.clear, lambda slots: slots.close("a")])
def test_nothing_is_kept_of_a_closed_session_or_of_a_lost_server(
    end: Callable[[SlotTable], None],
) -> None:
    slots = SlotTable(1)
    use(slots, "a", 1, 2)
    slots.files.end(slots.files.begin("a"), SlotContent("a", array("i", [1, 2])))
    slots.release(slots.begin("b"))
    assert (slots.find_kv("a"), list(slots.displaced)) == ("host", [0])
    end(slots)
    assert (slots.find_kv("a"), slots.displaced) == ("none", {})


def write(files: SlotFiles, session: str, *ids: int) -> int:
    file = files.begin(session)
    files.end(file, SlotContent(session, array("i", ids)))
    return file


def test_file_written_longest_ago_is_the_next_to_be_written() -> None:
    files = SlotFiles(2)
    assert [write(files, session, 1) for session in "abacb"] == [0, 1, 0, 1, 0]
    assert [files.find(session) is not None for session in "abc"] == [False, True, True]
    files.remove("c")
    assert write(files, "d", 1) == 1
    assert files.begin("e", needed="b") == 1, "that of b is about to be read"


def test_file_that_was_not_written_to_its_end_holds_nothing() -> None:
    files = SlotFiles(2)
    write(files, "a", 1)
    assert files.begin("a") == 0
    assert files.find("a") is None

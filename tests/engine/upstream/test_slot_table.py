"""Tests of the table of slots."""

from array import array

from continuo.engine.upstream.slots import SlotTable


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


def test_session_keeps_what_was_computed_until_its_slot_is_taken() -> None:
    slots = SlotTable(1)
    assert not slots.keeps("a")
    slot = slots.begin("a")
    assert slots.keeps("a"), "while it is computed"
    slots.end(slot, "a", array("i", [1]))
    assert slots.keeps("a")
    slots.clear()
    assert not slots.keeps("a"), "the server may have been started anew"
    use(slots, "a", 1)
    use(slots, "b", 1)
    assert [slots.keeps("a"), slots.keeps("b")] == [False, True]

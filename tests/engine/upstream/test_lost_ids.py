"""Tests of LostIds: vocabularies in which the ids are the positions of these texts."""

import pytest

from continuo.engine.upstream.lost_ids import LostIds

HAN = "日"  # E6 97 A5
FACE = "😀"  # F0 9F 98 80
BYTES = (*(bytes([byte]) for byte in HAN.encode()), *(bytes([byte]) for byte in FACE.encode()))


def lost_ids(*texts: bytes) -> LostIds:
    return LostIds(lambda id: texts[id], len(texts))


@pytest.mark.parametrize(
    ("more", "text", "count", "shown", "found"),
    [
        ((), HAN, 2, 2, [0, 1]),
        ((), FACE, 3, 6, [3, 4, 5]),
        ((b"\xe6\x97",), HAN, 1, 2, [7]),
        ((b" \xe6", b"\x97\xa5!"), f" {HAN}!", 1, 8, [7]),
        ((b"\xa5\xe6",), HAN * 2, 4, 2, [0, 1, 7, 1]),
    ],
)
def test_ids_are_found_where_one_answer_exists(
    more: tuple[bytes, ...], text: str, count: int, shown: int, found: list[int]
) -> None:
    assert lost_ids(*BYTES, *more).find(text, count, [shown]) == found


@pytest.mark.parametrize(
    ("more", "text", "count", "shown"),
    [
        ((b"\xe6",), HAN, 2, 2),  # two ids have the same text
        ((b"\xe6\x97",), HAN, 2, 2),  # one id has it all, and a token without text is possible
        ((b"\xf0\x9f", b"\x9f\x98"), FACE, 2, 6),  # F0 9F | 98 or F0 | 9F 98
        ((), HAN, 1, 2),  # fewer ids than it takes
        ((), "a", 1, 2),  # the text is not that of the id shown
        ((), "", 1, 2),
        ((), HAN, 2, 0),
        ((), "\ufffd", 1, 2),  # bytes that are no characters were replaced
        ((), HAN * 9, 26, 2),
    ],
)
def test_ids_with_other_answers_or_none_are_not_found(
    more: tuple[bytes, ...], text: str, count: int, shown: int
) -> None:
    assert lost_ids(*BYTES, *more).find(text, count, [shown]) is None


def test_event_without_an_id_tells_nothing() -> None:
    assert lost_ids(*BYTES).find(HAN, 3, []) is None

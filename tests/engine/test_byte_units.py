"""Tests of numbers of bytes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.byte_units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (114_688, "112 KiB"),
        (320 << 20, "320 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("1.5 GiB", 3 << 29), (" 512 MiB ", 512 << 20), ("7", 7), ("4KiB", 4096)],
)
def test_bytes_are_read_with_and_without_a_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "1.5", "2GB", "2g", "-1", "2 GiB GiB", "1e9", "½GiB"])
def test_other_text_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes, such as 2GiB"):
        parse_bytes(text)


@given(st.integers(0, 1 << 60))
def test_what_is_written_is_read_as_about_the_same(count: int) -> None:
    assert parse_bytes(format_bytes(count).removesuffix(" bytes").replace(",", "")) == (
        pytest.approx(count, rel=0.05)
    )

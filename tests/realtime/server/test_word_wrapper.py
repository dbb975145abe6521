"""Tests of the wrapping of streamed text, on a small terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.server.word_wrapper import WordWrapper, count_columns
from tests.support.screen import Screen


def columns_of(line: str) -> int:
    return sum(map(count_columns, line))


words = st.lists(st.sampled_from([*"abcdefg-中é", "e\u0301"]), max_size=14).map("".join)
texts = st.lists(
    st.one_of(words, st.sampled_from([" ", "  ", "\n", "\n\n", "\t", " \n "])), max_size=40
)


@given(texts, st.integers(6, 40))
def test_words_are_unchanged_and_lines_fit_unless_they_are_one_word(
    deltas: list[str], columns: int
) -> None:
    wrapper = WordWrapper(columns)
    screen = Screen("".join(wrapper.feed(delta) for delta in deltas), columns)
    assert screen.words() == "".join(deltas).split()
    for line in screen.lines():
        assert columns_of(line) < columns or len(line.split()) == 1


@given(texts, st.integers(6, 40))
def test_wrapping_does_not_depend_on_how_the_text_is_cut(deltas: list[str], columns: int) -> None:
    whole, pieces = WordWrapper(columns), WordWrapper(columns)
    text = "".join(deltas)
    assert whole.feed(text) == "".join(pieces.feed(char) for char in text)


@given(texts)
def test_text_in_a_pipe_is_not_changed(deltas: list[str]) -> None:
    wrapper = WordWrapper(None)
    assert "".join(map(wrapper.feed, deltas)) == "".join(deltas)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("12345678 9", ["12345678", "9"]),
        ("123456789", ["123456789"]),
        ("123456789 1", ["123456789", "1"]),
        ("one 234567890123 x", ["one", "234567890", "123 x"]),
        ("  code\n    more code", ["  code", "    more", "code"]),
        ("\ttab", ["tab"]),  # there is no room for the tab
        ("a\tb", ["a", "b"]),
        ("one  \n two", ["one", " two"]),
        ("中文中文 中文", ["中文中文", "中文"]),
    ],
)
def test_lines_of_a_terminal_of_nine_columns(text: str, lines: list[str]) -> None:
    assert Screen(WordWrapper(9).feed(text), 9).lines() == lines


def test_text_after_a_line_of_something_else_begins_at_the_first_column() -> None:
    wrapper = WordWrapper(12)
    assert wrapper.feed("abcdef ghi") == "abcdef ghi"
    wrapper.start_line()
    assert wrapper.feed("jklmno pqr") == "jklmno pqr"

"""Tests of the escaping of text for terminals, and of log lines."""

import io
import json
import logging
import sys
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import ConsoleFormatter, JsonFormatter, escape_commands, print_line

BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0)))) + BIDIRECTIONAL
SHOWN = "Tabs\tand\nlines, Grüße, עברית\u200f, e\u0301, 👩\u200d👧, 🏳️, \\u001b"


def find_commands(text: str) -> set[str]:
    """Find the characters that command a terminal, by their properties in Unicode."""
    return {
        char
        for char in text
        if (unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") and char not in "\t\n")
        or unicodedata.bidirectional(char)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    }


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_escaped_text_has_no_character_that_commands_a_terminal(text: str) -> None:
    escaped = escape_commands(text)
    assert not find_commands(escaped)
    assert escape_commands(escaped) == escaped
    escaped.encode()


def test_each_command_is_named_and_all_else_is_shown() -> None:
    assert escape_commands("\x1b]52;c;aGk=\x07\x9b2J\u202e") == (
        r"\u001b]52;c;aGk=\u0007\u009b2J\u202e"
    )
    assert escape_commands(SHOWN) == SHOWN


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(HOSTILE)), st.data())
def test_escaping_depends_neither_on_how_text_is_cut_nor_changes_json(
    text: str, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    assert escape_commands(text[:cut]) + escape_commands(text[cut:]) == escape_commands(text)
    assert json.loads(escape_commands(msgspec.json.encode(text).decode())) == text


def test_printed_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"one{HOSTILE}")
    print_line("two\x1bc", sys.stderr)
    print_line()
    shown, errors = capsys.readouterr()
    assert not find_commands(shown)
    assert shown.startswith("one\\u0000")
    assert shown.endswith("\n\n")
    assert errors == "two\\u001bc\n"


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
def test_log_lines_are_escaped_with_their_fields_and_tracebacks(
    formatter: logging.Formatter,
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("hostile")
    log.addHandler(handler)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("refused: %s", HOSTILE, extra={"fields": {"name": HOSTILE}})
    assert "refused" in stream.getvalue()
    assert "ValueError" in stream.getvalue()
    assert not find_commands(stream.getvalue())
    if isinstance(formatter, JsonFormatter):
        line = json.loads(stream.getvalue())
        assert line["message"] == f"refused: {HOSTILE}"
        assert line["name"] == HOSTILE

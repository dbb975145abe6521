"""Each atomic step in Redis is a named script that says what it takes and replies; each key has its
name and its expiry in `keys`."""

import re
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "realtime"
SCRIPTS = sorted((ROOT / "store" / "redis" / "scripts").glob("*.lua"))
PARTS = {"clock", "check_lease", "tombstone"}
"""Prefixes of other scripts, not scripts by themselves."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_says_what_it_takes_and_replies(script: Path) -> None:
    lines = script.read_text().splitlines()
    head = list(takewhile(lambda line: line.startswith("-- "), lines))
    assert head, "it says first what it is for"
    if script.stem in PARTS:
        return
    body = "\n".join(lines[len(head) :])
    for word in ("KEYS", "ARGV"):
        used = {int(n) for n in re.findall(rf"{word}\[(\d+)\]", body)}
        assert used <= _numbered(head, word), word
    assert _told(head, "reply")


def _told(head: list[str], word: str) -> str:
    """What it says behind a word, and in the lines that are set in below."""
    (at,) = (n for n, line in enumerate(head) if line.startswith(f"-- {word} "))
    below = takewhile(lambda line: line.startswith("--   "), head[at + 1 :])
    return " ".join([head[at].removeprefix(f"-- {word} "), *(line[2:] for line in below)])


def _numbered(head: list[str], word: str) -> set[int]:
    return {int(n) for n in re.findall(r"(?<!\S)(\d+)(?: |\.)", _told(head, word))}


def test_keys_and_steps_are_named_in_one_place() -> None:
    assert SCRIPTS, "without scripts the test above is empty"
    for file in ROOT.rglob("*.py"):
        text = file.read_text()
        assert "redis.call(" not in text, f"{file}: a script of its own"
        if file != ROOT / "store" / "keys.py":
            assert not re.search(r"[\"']continuo:[^ ]", text), f"{file}: a key of its own"

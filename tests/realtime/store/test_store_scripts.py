"""Conventions of the Redis store.

Each atomic operation is a script whose header describes its keys, arguments and reply, and each key
has its name and expiry in `keys`.
"""

import re
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "realtime"
SCRIPTS = sorted((ROOT / "store" / "redis" / "scripts").glob("*.lua"))
INCLUDED_PARTS = {"clock", "check_lease", "tombstone"}
"""Prefixes of other scripts, not scripts on their own."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_header_describes_keys_arguments_and_reply(script: Path) -> None:
    lines = script.read_text().splitlines()
    head = list(takewhile(lambda line: line.startswith("-- "), lines))
    assert head, "a script begins with a comment on its purpose"
    if script.stem in INCLUDED_PARTS:
        return
    body = "\n".join(lines[len(head) :])
    for word in ("KEYS", "ARGV"):
        used = {int(n) for n in re.findall(rf"{word}\[(\d+)\]", body)}
        assert used <= _described_numbers(head, word), word
    assert _described(head, "reply")


def _described(head: list[str], word: str) -> str:
    """The text after `word` in a header, with the indented lines that follow."""
    (start,) = (n for n, line in enumerate(head) if line.startswith(f"-- {word} "))
    following = takewhile(lambda line: line.startswith("--   "), head[start + 1 :])
    return " ".join([head[start].removeprefix(f"-- {word} "), *(line[2:] for line in following)])


def _described_numbers(head: list[str], word: str) -> set[int]:
    return {int(n) for n in re.findall(r"(?<!\S)(\d+)(?: |\.)", _described(head, word))}


def test_scripts_and_keys_are_defined_in_one_place() -> None:
    assert SCRIPTS, "without scripts the test above is empty"
    for file in ROOT.rglob("*.py"):
        text = file.read_text()
        assert "redis.call(" not in text, f"{file}: a script outside of scripts/"
        if file != ROOT / "store" / "keys.py":
            assert not re.search(r"[\"']continuo:[^ ]", text), f"{file}: a key outside of keys.py"

"""Facts that pages quote in words: constants, counts, places in the code, and figures. A page that
contradicted the code is named here with the fact that it must follow."""

import json
import re
from pathlib import Path

import pytest

from continuo.realtime.server.hardening import account, read_turns

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "evidence").rglob("*.md")),
]
TURN = ("half a millisecond", read_turns.TURN_S == 0.0005)
SHARE = ("over a fifth", account.SHARE_MAX == 0.2)
WINDOW = ("for 5 s", account.WINDOW_S == 5.0)
WORDS = {
    "CHANGELOG.md": [TURN, SHARE, WINDOW],
    "SECURITY.md": [TURN, SHARE, WINDOW],
    "docs/glossary.md": [TURN],
    "docs/protocol.md": [TURN, SHARE, WINDOW],
    "docs/reliability.md": [TURN, SHARE, WINDOW],
}
"""Words of pages for constants, each with whether the constant has that value."""
WIRES = {
    "realtime_api": "Realtime API",
    "responses_api": "Responses",
    "chat_api": "chat completions",
    "completions_api": "completions",
    "conversations_api": "conversations",
    "messages_api": "Anthropic's Messages",
    "sglang_api": "SGLang's native API",
}
NUMBERS = {6: "six", 7: "seven", 8: "eight", 9: "nine"}
STORES = re.compile(r"store\.(?:redis|sqlite)\b|\bis_redis_url\b|\bfind_sqlite_file\b")
"""Names by which a module distinguishes stores."""
RECORDS = re.compile(
    r"<!-- result: .*?<!-- end of result -->|<!-- made by make faults -->.*?<!-- end -->"
    r"|^```.*?^```|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)
"""Parts of a page that a program writes, or that show code."""
COMMIT = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}\b")
ISSUE = re.compile(r"\bissues? #?\d|(?<![\w&#(])#\d+\b", re.IGNORECASE)


@pytest.mark.parametrize("page", WORDS)
def test_page_names_the_value_of_a_constant(page: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for words, is_value in WORDS[page]:
        assert words in text
        assert is_value, f"'{words}' is not the value any more: correct all pages of WORDS"


def test_protocol_counts_and_names_its_wires() -> None:
    wires = {path.name for path in (ROOT / "realtime/protocol").glob("*_api")}
    assert wires == set(WIRES)
    text = " ".join((ROOT / "docs/protocol.md").read_text("utf-8").split())
    introduction = text.partition(" This page describes ")[0]
    assert f"serves {NUMBERS[len(wires)]} APIs" in introduction
    assert [name for name in WIRES.values() if name not in introduction] == []


def test_row_of_a_store_names_the_modules_that_distinguish_stores() -> None:
    table = (ROOT / "docs/where-to-change.md").read_text("utf-8")
    (row,) = re.findall(r"^\| a store backend \|.*", table, re.MULTILINE)
    store = ROOT / "realtime/store"
    modules = {
        path
        for path in (ROOT / "realtime").rglob("*.py")
        if store / "redis" not in path.parents
        and store / "sqlite" not in path.parents
        and path.name != "__init__.py"
        and STORES.search(path.read_text("utf-8"))
    }
    assert len(modules) >= 5
    assert {path.name for path in modules} == set(re.findall(r"([a-z_]+\.py)`", row))


def test_index_of_decisions_names_the_numbers_that_were_never_used() -> None:
    folder = ROOT / "docs/decisions"
    used = {int(path.name[:4]) for path in folder.glob("0*.md")}
    missing = sorted({*range(1, max(used))} - used)
    text = (folder / "index.md").read_text("utf-8")
    assert [int(number) for number in re.findall(r"\b0\d{3}\b", text)] == missing


def test_readme_has_the_memory_that_was_measured() -> None:
    rows = json.loads((ROOT / "evidence/benchmarks/start.json").read_text("utf-8"))["rows"]
    (demo,) = [row for row in rows if row["model"] == "demo"]
    measured_mib = demo["gateway_mib"] + demo["engine_mib"]
    (said,) = re.findall(r"\[about (\d+) MiB\]", (ROOT / "README.md").read_text("utf-8"))
    assert abs(measured_mib - int(said)) < 15


def find_outsiders(text: str) -> list[str]:
    """Return the names of commits and the numbers of issues in the prose of a page."""
    prose = RECORDS.sub("", text)
    return [*COMMIT.findall(prose), *ISSUE.findall(prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_names_no_commit_and_no_issue(page: Path) -> None:
    """A reader without our history cannot place them: a date or a description can be placed."""
    assert find_outsiders(page.read_text("utf-8")) == []


@pytest.mark.parametrize("text", ["beside 0abc123, in two", "as issue 38 says", "see #212."])
def test_commit_or_issue_is_found(text: str) -> None:
    assert len(find_outsiders(text)) == 1

"""Links of all Markdown files: the file or folder exists, and so does the heading that they name.

`make docs` checks the links within the site alone. Addresses of the web are not asked.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {"node_modules", "assets", "build", "dist", "secrets"}
"""Folders with what was installed or built; those that begin with a dot are skipped too."""
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`*~* *$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^()\s>]+(?:\([^()]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
TARGET = re.compile(r"(?:href|src|srcset)=\"([^\"]+)\"")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]: +<?(\S+?)>?$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


def find_files() -> list[str]:
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(
        path.as_posix()
        for path in found
        if not any(part in SKIPPED or part.startswith(".") for part in path.parts)
    )


FILES = find_files()


@cache
def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a file: those that it writes, and those that GitHub makes of its
    headings."""
    text = path.read_text("utf-8")
    found, times = set(ANCHOR.findall(text)), Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        found.add(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    return found


def find_broken(file: Path, text: str) -> list[str]:
    """Return the links of a Markdown file that lead nowhere."""
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    links = [found for pattern in (LINK, TARGET, REFERENCE) for found in pattern.findall(prose)]
    broken: list[str] = []
    for link in links:
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        path = (file.parent / name).resolve() if name else file
        exists = path.exists() and path.is_relative_to(ROOT)
        if not exists or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("file", FILES)
def test_links_lead_somewhere(file: str) -> None:
    assert find_broken(ROOT / file, (ROOT / file).read_text("utf-8")) == []


def test_all_kinds_of_files_are_checked() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/protocol.md", "web/src/client/README.md"} < {*FILES}
    assert len(FILES) > 50


@pytest.mark.parametrize(
    "link",
    [
        "[a](no-such-file.md)",
        "[a](docs/protocol.md#no-such-heading)",
        "[a](#no-such-heading)",
        "[a](../outside.md)",
        '<img src="docs/no-such.png">',
        "[a]: docs/no-such.md",
        "[the `code` of a\nlink](no-such-file.md)",
    ],
)
def test_broken_link_is_found(link: str) -> None:
    assert len(find_broken(ROOT / "README.md", f"# A page\n\n{link}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/protocol.md#error-codes)",
        "[a](#a-page)",
        "[a](https://example.org/nothing)",
        "`[a](no-such-file.md)`",
        "```\n[a](no-such-file.md)\n```",
    ],
)
def test_other_text_is_not(text: str) -> None:
    # The anchors of a page are those of its file, so the heading is one of README.md.
    text = text.replace("#a-page", "#a-program")
    assert find_broken(ROOT / "README.md", text) == []

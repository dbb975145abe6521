"""The fenced blocks of the documentation, which tests run or check.

A block that no test can run has a comment before it: `<!-- not run: why -->`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^[ >]*(`{3,}|~{3,})(.*)$")
NOT_RUN = re.compile(r"<!-- not run: ([^>]+?) -->\s*\Z")


class Block(NamedTuple):
    page: str
    """Path of the page in the repository."""
    number: int
    """Position among the blocks of the page, from 0."""
    line: int
    """Line of the opening fence, from 1."""
    language: str
    """First word after the fence; empty for output and commands of a shell."""
    text: str
    not_run: str | None
    """Reason of the comment before the block."""

    @property
    def name(self) -> str:
        return f"{self.page} {self.number}"

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def find_pages() -> list[str]:
    """Return the pages for users and contributors, as paths in the repository."""
    single = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    folders = [
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "evidence")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ]
    return [*single, *folders, "web/src/client/README.md"]


def read_blocks(page: str, markdown: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page. Raises ValueError if the last one is not closed."""
    number, end, before, inside = 0, "", "", list[str]()
    opened, language = 0, ""
    for line_number, line in enumerate(markdown.splitlines(), 1):
        found = FENCE.match(line)
        if not end:
            if found is None:
                before += line + "\n"
                continue
            end, opened, inside = found[1], line_number, []
            language = (found[2].split() or [""])[0]
        elif found is not None and found[1].startswith(end) and not found[2].strip():
            reason = NOT_RUN.search(before)
            text = "".join(f"{one}\n" for one in inside)
            yield Block(page, number, opened, language, text, reason and reason[1])
            number, end, before = number + 1, "", ""
        else:
            inside.append(line)
    if end:
        raise ValueError(f"{page}:{opened}: the block is not closed")


def blocks_of(page: str) -> list[Block]:
    return list(read_blocks(page, (ROOT / page).read_text("utf-8")))


def blocks_in(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages that are to be run."""
    return [
        block
        for page in find_pages()
        for block in blocks_of(page)
        if block.language in languages and block.not_run is None
    ]
